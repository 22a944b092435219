"""What the benchmarks share: turns of all sides, large pages, and tables as CSV."""

import csv
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["in_turns", "use_huge_pages", "write_csv"]


def in_turns(
    sides: Mapping[str, Callable[[], tuple[float, float]]],
    repeats: int,
    warm_up: int = 1,
) -> dict[str, list[tuple[float, float]]]:
    """Run all sides one after the other, so that a busy machine slows all of them.

    Args:
      sides: each runs once and returns two times in seconds.
      repeats: number of turns.
      warm_up: runs of each side before the first turn.

    Example:
        >>> in_turns({"ours": lambda: (1.0, 2.0)}, repeats=2)
        {'ours': [(1.0, 2.0), (1.0, 2.0)]}
    """
    for run in sides.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            time.sleep(0.005)  # idle threads of the side before spin for a while
            seconds[name].append(run())
    return seconds


def use_huge_pages(module: str) -> None:
    """Start the module again: the C library reads this when a program begins."""
    setting = "glibc.malloc.hugetlb=1"
    if os.environ.get("GLIBC_TUNABLES") != setting:
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"GLIBC_TUNABLES": setting})


def write_csv(file: Path, rows: Sequence[Any], digits: int = 5) -> None:
    """A line for each row, which are NamedTuples; nothing stands for None.

    Args:
      file: what is written.
      rows: all of one type.
      digits: that floats keep.
    """

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{digits}g}")
        return "" if value is None else value

    with open(file, "w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(rows[0]._fields)
        for row in rows:
            writer.writerow(map(short, row))
