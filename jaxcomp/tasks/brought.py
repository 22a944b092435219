"""Settings that the model of a config brings: attributes of its factory."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcomp.errors import UserError
from jaxcomp.imported import importable
from jaxcomp.specs import Call, parse, pieces
from jaxcomp.tasks.named import PARTS

__all__ = ["MODEL", "regime_of", "transform_of"]

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
