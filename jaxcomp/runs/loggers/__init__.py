"""Loggers: where the figures of a run go, beside its tables. One line for each.

A factory takes the arguments of its spec and returns a function that opens the logger
in the folder of a run. So a wrong name or argument is told before anything is computed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import build, check, check_kind, importable, publish
from jaxcomp.runs.loggers.files import (
    FOLDER,
    Logger,
    Opener,
    Row,
    RunSoFar,
    csv,
    jsonl,
    tensorboard,
    tsv,
)
from jaxcomp.runs.loggers.trackers import offline_safe, wandb

__all__ = [
    "FOLDER",
    "REGISTRY",
    "Logger",
    "Named",
    "Opener",
    "RunSoFar",
    "make",
    "opened",
]

REGISTRY: dict[str, Callable[..., Opener]] = {
    "csv": csv,
    "jsonl": jsonl,
    "tensorboard": tensorboard,
    "tsv": tsv,
    "wandb": wandb,
}
publish(logger=REGISTRY)
_OF_FILES = ("csv", "jsonl", "tensorboard", "tsv")  # a full disk ends a run anyway


class Named(NamedTuple):
    """A logger of a config, ready to be opened."""

    name: str
    open: Opener


def make(specs: Sequence[str]) -> list[Named]:
    """Look up loggers, and check their arguments.

    Args:
      specs: names in `REGISTRY`, or of your own: `my_package.loggers:mine(arg=1)`.

    Raises:
      SpecError: there is no such logger or argument.
      UserError: a logger is named twice, or its package is not installed.

    Example:
      >>> [named.name for named in make(["csv", "tensorboard"])]
      ['csv', 'tensorboard']
      >>> make(["tensorbord"])
      Traceback (most recent call last):
      jaxcomp.SpecError: unknown logger 'tensorbord'. Did you mean ...
    """
    twice = sorted({str(spec) for spec in specs if list(specs).count(spec) > 1})
    if twice:
        raise UserError(f"loggers name {twice[0]!r} twice: leave one of them out")
    made = []
    for spec in specs:
        check(str, "a logger", spec)
        rest, registry = importable(spec, REGISTRY, "logger")
        opener = build(rest, registry, "logger")
        made.append(Named(spec, check_kind(opener, Callable, spec, "logger")))
    return made


def opened(named: Sequence[Named], run: RunSoFar, say: Callable[[str], None]) -> Logger:
    """All loggers of a run as one.

    Trackers and loggers of one's own must not stop a run: their first error is said,
    and then they are left out.

    Args:
      named: from `make`.
      run: that begins or goes on.
      say: where a line for people goes.
    """

    def open_(each: Named) -> Logger:
        if each.name in _OF_FILES:
            return each.open(run)

        def checked(run: RunSoFar) -> Logger:
            return check_kind(each.open(run), Logger, each.name, "logger")

        return offline_safe(each.name, checked, say)(run)

    loggers = [open_(each) for each in named]

    def epoch(row: Row) -> None:
        for logger in loggers:
            logger.epoch(row)

    def step(row: Row) -> None:
        for logger in loggers:
            logger.step(row)

    def close() -> None:
        for logger in loggers:
            logger.close()

    return Logger(epoch, step, close)
