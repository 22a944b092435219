"""The tree of gradients that a command line names."""

import ast
import json
from pathlib import Path
from typing import Any

import jax

from jaxcomp import shapes
from jaxcomp.errors import UserError
from jaxcomp.specs import suggest

__all__ = ["read_tree"]

_IMAGES = (1, 32, 32, 3)  # of which the parameters of a classifier do not depend


def read_tree(text: str) -> Any:
    """The tree that a text names.

    Args:
      text: a name in `jaxcomp.shapes.TREES` or `jaxcomp.models.REGISTRY`, a list of
        shapes, or a JSON file that holds such a list or names with their shapes.

    Example:
      >>> read_tree("[(3, 4), (4,)]")
      [(3, 4), (4,)]
    """
    if text in shapes.TREES:
        return shapes.tree(text)
    if text.startswith("["):
        try:
            found = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            message = "is no list of shapes such as [(3, 4), (4,)]"
            raise UserError(f"{text!r} {message}") from None
        return _checked(found, text)
    if text.endswith(".json"):
        try:
            found = json.loads(Path(text).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{text}: {error.strerror}") from None
        except ValueError as error:
            raise UserError(f"{text} is no JSON: {error}") from None
        return _checked(found, text)
    return _of_model(text)


def _checked(found: Any, text: str) -> Any:
    every = found.values() if isinstance(found, dict) else found
    if not isinstance(every, list) and not isinstance(found, dict):
        raise UserError(f"{text} holds no list of shapes, and no names with shapes")
    for shape in every:
        is_list = isinstance(shape, list | tuple)
        if not is_list or not all(type(n) is int and n >= 0 for n in shape):
            raise UserError(f"a shape is a list of whole numbers, not {shape!r}")
    if isinstance(found, dict):
        return {name: tuple(shape) for name, shape in found.items()}
    return [tuple(shape) for shape in found]


def _of_model(name: str) -> Any:
    from jaxcomp import models

    if name not in models.REGISTRY:
        valid = {*models.REGISTRY, *shapes.TREES}
        raise UserError(f"unknown model {name!r}. {suggest(name, valid)}")
    model = models.make(name)
    images = jax.ShapeDtypeStruct(_IMAGES, jax.numpy.float32)
    variables = jax.eval_shape(
        lambda key, x: model.init(key, x, train=False), jax.random.key(0), images
    )
    return variables["params"]
