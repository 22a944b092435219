"""The console output of a run: a live bar, and a line for each epoch."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from jaxcomp.output import as_output

__all__ = ["Display", "bars", "display"]


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
    console = Console(file=out, highlight=False, soft_wrap=True)
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
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
    with Progress(console=console, transient=True, disable=not live) as shown:
        tasks: dict[str, TaskID] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = shown.add_task(task)
            shown.update(tasks[task], completed=done, total=total or None)

        yield report
