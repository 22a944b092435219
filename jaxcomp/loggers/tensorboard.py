"""The figures of a run as scalars for TensorBoard."""

from jaxcomp.loggers.base import Logger, Opener, Row, RunSoFar, numbers
from jaxcomp.loggers.events import open_events

__all__ = ["tensorboard"]

FOLDER = "tensorboard"  # in the run folder; profiles go there too


def tensorboard() -> Opener:
    """tensorboard/: the same figures as scalars; look with `tensorboard --logdir=runs`.

    A run that goes on begins a file of its own, which tells TensorBoard to forget the
    steps after the checkpoint.
    """

    def open_(run: RunSoFar) -> Logger:
        events = open_events(run.folder / FOLDER)
        events.restart(run.start + 1)

        def add(kind: str, row: Row) -> None:
            known = numbers(row)
            step = int(known.pop("step"))
            tagged = {f"{kind}/{name}": value for name, value in known.items()}
            events.scalars(step, tagged)

        return Logger(lambda row: add("epoch", row), lambda row: add("step", row))

    return open_
