"""Checks of the values of a config, for runs of any kind."""

from collections.abc import Mapping
from typing import Annotated, Any

from jaxcomp.runs.errors import RunError
from jaxcomp.specs import Count, Range, check, suggest

__all__ = ["SHARED", "check_fit", "check_values", "whole_batches"]

# Keys of a run of any kind.
SHARED = {
    "batch_size": Count,
    "seed": Annotated[int, Range(least=0, most=2**32 - 1)],
    "workers": Count,
}


def check_values(
    config: Any, kinds: Mapping[str, Any], filled: Mapping[str, str]
) -> None:
    """Refuse a config that lacks a key, or has a value that cannot be right.

    Args:
      config: of a run.
      kinds: for each key, an annotation as in `jaxcomp.specs.arguments`.
      filled: the keys of strings that may not be empty, each with an example.

    Example:
      >>> check_values({"workers": 0}, {"workers": Count}, {})
      Traceback (most recent call last):
      jaxcomp.specs.grammar.SpecError: workers is a whole number of at least 1, not 0
    """
    kinds = {**dict.fromkeys(filled, str), **kinds}
    missing = sorted(kinds.keys() - config.keys())
    if missing:
        message = f"the config lacks {', '.join(missing)}: begin with one of configs/"
        raise RunError(f"{message}. {suggest(missing[0], config.keys())}")
    for key, kind in kinds.items():
        check(kind, key, config[key])
    for key, example in filled.items():
        if not config[key].strip():
            raise RunError(f"{key} is empty: write for example {example!r}")


def check_fit(workers: int, batch: int, accumulate: int = 1) -> None:
    """Refuse a batch that the workers do not divide.

    Args:
      workers: of the run.
      batch: examples of a step, of all workers together.
      accumulate: parts in which a worker takes its share.

    Example:
      >>> check_fit(workers=4, batch=63)
      Traceback (most recent call last):
      jaxcomp.runs.errors.RunError: a batch of 63 does not divide over 4 workers: ...
    """
    parts = workers * accumulate
    if batch % parts:
        each = f" with accumulate={accumulate}" if accumulate > 1 else ""
        nearest = parts * max(1, round(batch / parts))
        raise RunError(
            f"a batch of {batch} does not divide over {workers} workers{each}: take a "
            f"multiple of {parts}, such as {nearest}"
        )


def whole_batches(examples: int, batch: int) -> int:
    """The number of whole batches in an epoch, at least one.

    Example:
      >>> whole_batches(100, 32)
      3
    """
    if batch > examples:
        raise RunError(f"a batch of {batch} is more than {examples} examples")
    return examples // batch
