"""What a person sees while a run goes on: a live bar, and a line for each epoch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["Display", "bytes_text", "display"]


class Display(NamedTuple):
    """Where a run reports to."""

    say: Callable[[str], None]  # a line that stays
    step: Callable[[int, str], None]  # steps done, short status


@contextlib.contextmanager
def display(total: int, *, quiet: bool = False) -> Iterator[Display]:
    """A live progress bar on a terminal; plain lines where there is none.

    Args:
      total: steps of the run.
      quiet: print nothing, as on processes other than the first.
    """
    if quiet:
        yield Display(lambda line: None, lambda done, status: None)
        return
    console = Console(highlight=False, soft_wrap=True)
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


def bytes_text(count: float) -> str:
    """A number of bytes for people.

    Example:
        >>> bytes_text(999), bytes_text(1_234_000)
        ('999 B', '1.23 MB')
    """
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """One line of the epoch table."""
    test = row["test_accuracy"]
    left_out = row["overflow"]
    room = f"  overflow {left_out:,.0f} a step" if left_out else ""
    tested = "" if test is None else f"  test {row['test_loss']:.4f} {test:7.2%}"
    return (
        f"epoch {row['epoch']:>3}/{epochs}  train {row['train_loss']:.4f} "
        f"{row['train_accuracy']:7.2%}{tested}  lr {row['learning_rate']:.4f}  "
        f"{row['seconds']:.1f} s{room}"
    )
