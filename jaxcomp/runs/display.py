"""What a run shows on the console: its progress, its lines and its end."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rich import progress
from rich.console import Console

from jaxcomp.core.output import as_output
from jaxcomp.core.units import bytes_text, times_fewer


class Display(NamedTuple):
    """The functions by which a run writes to the console."""

    say: Callable[[str], None]  # a line that stays
    step: Callable[[int, str], None]  # steps done, short status


@contextlib.contextmanager
def display(
    total: int, lost: Callable[[Exception], object], *, quiet: bool = False
) -> Iterator[Display]:
    """A live progress bar on a terminal; plain lines where there is none.

    Args:
      total: steps of the run.
      lost: called once, where a line cannot be written; nothing is raised.
      quiet: print nothing, as on processes other than the first.
    """
    if quiet:
        yield Display(lambda line: None, lambda done, status: None)
        return
    out = as_output(sys.stdout)  # rich ends a program whose reader has left
    out.lost = lost
    # In a notebook too, lines go where those of the program go.
    console = Console(file=out, highlight=False, soft_wrap=True, force_jupyter=False)
    columns = (
        progress.TextColumn("step"),
        progress.MofNCompleteColumn(),
        progress.BarColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeRemainingColumn(),
    )
    live = console.is_terminal
    with progress.Progress(
        *columns, console=console, transient=True, disable=not live
    ) as bar:
        task = bar.add_task("", total=total)

        def step(done: int, status: str) -> None:
            bar.update(task, completed=done, description=status)

        def say(line: str) -> None:
            console.print(line, markup=False)

        yield Display(say, step)


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr for each of several tasks; nothing where there is no terminal.

    Returns:
      A function from a task's name, what is done and the whole, 0 if that is not known.
    """
    console = Console(stderr=True)
    live = console.is_terminal
    with progress.Progress(console=console, transient=True, disable=not live) as shown:
        tasks: dict[str, progress.TaskID] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = shown.add_task(task)
            shown.update(tasks[task], completed=done, total=total or None)

        yield report


def traffic_line(
    nbytes: tuple[float, float, float], steps: int, *, moved: bool, whom: str = "it"
) -> str:
    """What each worker sent in a run, for `closing_lines`.

    Args:
      nbytes: of its messages; that left it, NaN where that was not recorded from the
        beginning; and that would have left it with `exact`.
      steps: of the run.
      moved: False for simulated workers.
      whom: what the bytes left.

    Example:
      >>> print(traffic_line((1e6, 3e6, 6e7), 9, moved=True))
      messages of 1 MB in 9 steps; 3 MB left it, 20 times fewer than the 60 MB of exact
    """
    sent, left, exact = nbytes
    less = times_fewer(exact, left)
    if math.isnan(left):
        gone = f"what left {whom} was not recorded from the beginning"
    else:
        gone = f"{bytes_text(left)} {'left' if moved else 'would have left'} {whom}"
    if not math.isnan(less):
        gone += f", {less:.3g} times fewer than the {bytes_text(exact)} of exact"
    return f"messages of {bytes_text(sent)} in {steps} steps; {gone}"


def closing_lines(
    lines: Mapping[str, str], folder: Path, page: Path | None = None
) -> str:
    """The end of a run of any kind, a line for each figure.

    Example:
      >>> print(closing_lines({"accuracy": "98 %"}, Path("a"), Path("a/report.html")))
      accuracy       98 %
      run folder     a
      report         a/report.html
    """
    whole = {**lines, "run folder": folder} | ({"report": page} if page else {})
    width = max(14, *map(len, whole))
    return "\n".join(f"{name:{width}} {text}" for name, text in whole.items())
