"""A trace of some steps of a run, for TensorBoard and XProf."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from jaxcomp.core.errors import UserError

_WINDOW = re.compile(r"\s*steps?\s+(\d+)(?:\s+to\s+(\d+))?\s*")


def window_of(text: str, total: int) -> range:
    """The steps that are to be traced, counted from 1.

    Args:
      text: "steps 10 to 15", both of them included, "step 3", or "" for none.
      total: steps of the run.

    Example:
      >>> list(window_of("steps 3 to 5", total=100)), list(window_of("", total=100))
      ([3, 4, 5], [])
      >>> window_of("3-5", total=100)
      Traceback (most recent call last):
      jaxcomp.UserError: profile: not a window of steps: '3-5'. Write for ...
    """
    if not text.strip():
        return range(0)
    found = _WINDOW.fullmatch(text)
    if found is None:
        hint = "Write for example 'steps 10 to 15'"
        raise UserError(f"profile: not a window of steps: {text!r}. {hint}")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last <= total:
        message = f"the run has the steps 1 to {total}, and no window {text!r}"
        raise UserError(f"profile: {message}")
    return range(first, last + 1)


@contextlib.contextmanager
def profiler(
    window: range, folder: Path, say: Callable[[str], None], *, writes: bool
) -> Iterator[Callable[[int, Any], None]]:
    """Trace the steps of a window; the trace ends with them, or with the run.

    Args:
      window: of steps, from 1.
      folder: where TensorBoard finds the trace.
      say: where a line for people goes.
      writes: whether this process traces.

    Yields:
      A function to be called before each step with its number, from 1, and the state,
      whose steps are waited for where the window begins or ends.
    """
    traces = False

    def stop() -> None:
        nonlocal traces
        if traces:
            traces = False
            jax.profiler.stop_trace()
            say(f"traced {_steps(window)}: tensorboard --logdir={folder}")

    def before(number: int, state: Any) -> None:
        nonlocal traces
        if not writes or (number in window) == traces:
            return
        jax.block_until_ready(state)
        if traces:
            stop()
        else:
            jax.profiler.start_trace(folder)
            traces = True

    try:
        yield before
    finally:
        stop()


def _steps(window: range) -> str:
    first, last = window[0], window[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"
