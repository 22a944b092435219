"""SIGTERM and Ctrl-C end a run at a step border, with everything saved."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = ["Interrupted", "catch_signals"]


class Interrupted(Exception):
    """The run was told to stop; it has saved its state and can go on."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum  # a shell expects 128 + signum as exit code


@contextlib.contextmanager
def catch_signals() -> Iterator[Callable[[], int | None]]:
    """Yield a function that tells which signal came, if any.

    With several processes the answer is the same on all of them, because they stop at
    the same step or wait for each other for ever; all must ask at the same steps. A
    second signal falls through to the usual behaviour, for people in a hurry.
    """
    caught: list[int] = []
    signals = (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        caught.append(number)
        restore()

    def agreed() -> int | None:
        mine = caught[0] if caught else 0
        if jax.process_count() == 1:
            return mine or None
        return int(np.max(multihost_utils.process_allgather(np.int32(mine)))) or None

    for number in signals:
        signal.signal(number, handle)
    try:
        yield agreed
    finally:
        restore()
