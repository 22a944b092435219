"""Signals that a starter of processes gets, and passes on as it sees fit."""

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["caught_signals"]


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """The signals that this process gets, instead of ending by them."""
    caught: list[int] = []
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        wanted.append(signal.SIGHUP)
    before = {n: signal.signal(n, lambda n, frame: caught.append(n)) for n in wanted}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
