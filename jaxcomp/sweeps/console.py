"""The console of a sweep: a line for each run that has ended, and a live bar."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

__all__ = ["Lines", "lines"]


class Lines(NamedTuple):
    """The functions by which a sweep writes to the console."""

    say: Callable[[str], None]  # a line that stays
    show: Callable[[int, int, str], None]  # runs that have ended, all runs, status


@contextlib.contextmanager
def lines() -> Iterator[Lines]:
    """A live bar on a terminal, and lines that stay; the lines alone in a file."""
    console = Console(highlight=False, soft_wrap=True)
    columns = (
        TextColumn("{task.completed} of {task.total} runs"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
    )
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, status: str) -> None:
            bar.update(task, completed=done, total=total, description=status)

        yield Lines(lambda line: console.print(line, markup=False), show)
