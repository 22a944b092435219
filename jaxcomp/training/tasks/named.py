"""Models, data sets and regimes that a config names."""

import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import jax.numpy as jnp

from jaxcomp import data, models
from jaxcomp.convex import problems
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import (
    Call,
    SpecError,
    build,
    check_kind,
    importable,
    parse,
    pieces,
    publish,
)
from jaxcomp.data import text

Registry = MutableMapping[str, Callable[..., Any]]

# task -> key of the config -> what may be named there
PARTS: dict[str, dict[str, Registry]] = {
    "classification": {"dataset": data.REGISTRY, "model": models.REGISTRY},
    "language": {"dataset": text.REGISTRY, "model": models.LANGUAGE},
    "logistic_regression": {"dataset": problems.REGISTRY},
}
for _key in ("dataset", "model"):
    _all = [own[_key] for own in PARTS.values() if _key in own]
    publish(**{_key: ChainMap(*_all)})


def named(
    task: str, kind: str, spec: str, wanted: Any, usual: Mapping[str, Any]
) -> Any:
    """Build what a config names, with those of the usual arguments that it takes.

    Args:
      task: for which it is named.
      kind: the key of the config, "dataset" or "model".
      spec: the value of that key.
      wanted: the type of what is built.
      usual: arguments by name. The spec may give them too, and then decides.

    Example:
      >>> from flax import linen as nn
      >>> model = named("language", "model", "lstm", nn.Module, {"vocabulary": 7})
      >>> model.vocabulary
      7
      >>> named("classification", "model", "lstm", nn.Module, {})
      Traceback (most recent call last):
      jaxcomp.SpecError: model 'lstm' is one of the task 'language', not \
of 'classification': set task to 'language', or name another model
    """
    name, known = importable(spec, PARTS[task][kind], kind)
    call = named_call(name, kind)
    _check_task(task, kind, call.name, known)
    taken = inspect.signature(known[call.name]).parameters if call.name in known else ()
    asked = usual.get("statistics", models.LOCAL)
    if asked != models.LOCAL and "statistics" not in taken:
        message = (
            "batch_norm 'sync', or a 'ghost', needs a model with an argument "
            f"statistics, which {name!r} has not: set batch_norm to 'local'"
        )
        raise SpecError(message)
    if "dtype" in usual and "dtype" not in taken:
        asked = jnp.dtype(usual["dtype"]).name
        message = (
            f"compute_dtype {asked!r} needs a model with an argument dtype, which "
            f"{name!r} has not: set compute_dtype to 'float32'"
        )
        raise SpecError(message)
    given = {key: value for key, value in usual.items() if key in taken}
    made = build(call._replace(kwargs={**given, **call.kwargs}), known, kind)
    return check_kind(made, wanted, spec, kind)


def half_precision(config: Any) -> dict[str, Any]:
    """The argument of a model that is to compute as the config says, if it needs one.

    Example:
      >>> half_precision({"compute_dtype": "float32"})
      {}
    """
    dtype = config["compute_dtype"]
    return {} if dtype == "float32" else {"dtype": getattr(jnp, dtype)}


def named_call(spec: str, kind: str) -> Call:
    """Parse a spec whose arguments all have names.

    Example:
      >>> named_call("digits(size=8)", "dataset").kwargs
      {'size': 8}
    """
    call = parse(spec)
    if not isinstance(call, Call) or call.args:
        raise SpecError(f"a {kind} is a name with named arguments, not {spec!r}")
    return call


def _check_task(task: str, kind: str, name: str, known: Mapping[str, Any]) -> None:
    """Refuse a name that only another task knows, and say which one."""
    others = [other for other, own in PARTS.items() if name in own.get(kind, ())]
    if name not in known and others:
        message = (
            f"{kind} {name!r} is one of the task {others[0]!r}, not of {task!r}: set "
            f"task to {others[0]!r}, or name another {kind}"
        )
        raise SpecError(message)


MODEL = "model"  # stands for what the model brings


def regime_of(config: Any) -> Sequence[Any]:
    """The settings over a run that a config's model brings, () for none.

    They are the attribute `regime` of its factory, pairs as in `config.regime`.

    Example:
      >>> regime_of({"task": "classification", "model": "resnet20"})[1]
      ('81 epochs', {'learning_rate': 0.01})
    """
    return getattr(_factory(config), "regime", ())


def transform_of(config: Any, key: str) -> str:
    """The value of "augment" or "eval_view", with that of the model for "model".

    A model brings both in the attribute `input_transform` of its factory. Among several
    augmentations the word stands for those of the model.

    Args:
      config: its task, its model and the key.
      key: "augment" or "eval_view".

    Raises:
      UserError: the model brings none.

    Example:
      >>> config = {"model": "alexnet_imagenet", "augment": "model | cutout(size=8)"}
      >>> transform_of(config, "augment")
      'crop(pad=0, size=224) | flip | cutout(size=8)'
    """
    spec = config[key]
    if not spec.strip():
        return spec
    links = [piece.strip() for piece in pieces(spec)]
    if MODEL not in links:
        return spec
    brought: Mapping[str, str] = getattr(_factory(config), "input_transform", {})
    if key not in brought:
        raise UserError(
            f"{key} {spec!r}: the model {config['model']!r} brings none, as an "
            f"attribute input_transform of its factory. Say which, or write "
            f"--config.{key}= for none"
        )
    return " | ".join(brought[key] if link == MODEL else link for link in links)


def _factory(config: Any) -> Any:
    """What makes the model of a config; None where no name says it."""
    task = config.get("task", "classification").partition("(")[0].strip()
    registry = PARTS.get(task, {}).get("model", {})
    spec, known = importable(config["model"], registry, "model")
    call = parse(spec)
    return known.get(call.name) if isinstance(call, Call) else None
