"""Names in other registries: an unknown compressor may be the name of an exchange."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxcomp.specs.grammar import nearest, show, suggest

__all__ = ["publish", "unknown"]

_ALIKE = 0.8  # how alike a name has to be to one of another kind
_KNOWN: dict[str, Mapping[str, Callable[..., Any]]] = {}


def publish(**registries: Mapping[str, Callable[..., Any]]) -> None:
    """Let messages about unknown names look into these registries too.

    Args:
      **registries: each after the key of a config that names its members.
    """
    _KNOWN.update(registries)


def unknown(kind: str, name: str, valid: Mapping[str, Any]) -> str:
    """The message about a name that a registry does not have.

    Args:
      kind: what the registry holds.
      name: that it does not have.
      valid: the registry.

    Example:
      >>> from jaxcomp import compressors
      >>> unknown("compressor", "powersgd", compressors.REGISTRY).split(" Valid: ")[0]
      "unknown compressor 'powersgd': power_sgd is an exchange: \
--config.exchange='power_sgd(rank=2)'."
    """
    others = {
        other: key
        for key, registry in _KNOWN.items()
        if key != kind
        for other in registry
        if other not in (*valid, "none")
    }
    meant = nearest(name, others, _ALIKE)
    if meant is None or nearest(name, valid, _ALIKE):
        return f"unknown {kind} {name!r}. {suggest(name, valid)}"
    key = others[meant]
    article = "an" if key[0] in "aeiou" else "a"
    spec = _example(meant, _KNOWN[key][meant])
    return (
        f"unknown {kind} {name!r}: {meant} is {article} {key}: "
        f"--config.{key}={spec!r}. Valid: {', '.join(sorted(valid))}"
    )


def _example(name: str, factory: Callable[..., Any]) -> str:
    """A spec with the arguments that stand in every name."""
    parameters = inspect.signature(factory).parameters
    shown = [parameters[key] for key in getattr(factory, "shown", ())]
    values = {p.name: "..." if p.default is p.empty else show(p.default) for p in shown}
    arguments = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({arguments})" if arguments else name
