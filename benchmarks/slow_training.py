"""Two runs of a training on slow links: which one is at an accuracy first?

    python -m benchmarks.on_hosts --hosts 4 --rate 100 -- python train.py \
        --config=configs/slow_links.py --workdir=runs/compressed
    python -m benchmarks.on_hosts --hosts 4 --rate 100 -- python train.py \
        --config=configs/slow_links.py --workdir=runs/dense \
        --config.exchange=exact --config.compressor=none --config.memory=none
    python -m benchmarks.slow_training runs/dense runs/compressed --out build

The first folder is that of the run to compare with. Writes slow_training.csv, with a
row for each epoch, and slow_training.png: test accuracy over seconds and over bytes.
Without folders it reads the CSV file of `--out` and draws it again.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import style
from benchmarks.common import write_csv
from benchmarks.network_plot import LOOKS
from jaxcomp.core.units import bytes_text, seconds_text
from jaxcomp.report.run_folder import read_run


class Row(NamedTuple):
    """A run at the end of an epoch."""

    run: str
    epoch: int
    step: int
    seconds: float  # of training steps; compiling is not in it
    nbytes: float  # that have left a worker
    accuracy: float  # on the test set


def main(arguments: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    add("folders", nargs="*", type=Path, help="of runs; the one to compare with first")
    add("--out", type=Path, required=True, help="folder for the CSV and the plot")
    args = parser.parse_args(arguments)
    table = args.out / "slow_training.csv"
    if args.folders:
        rows = [row for folder in args.folders for row in rows_of(folder)]
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(table, rows, digits=7)
    elif table.exists():
        rows = read(table)
    else:
        raise SystemExit(f"no run folders are given, and there is no {table}")
    by_run = _by_run(rows)
    dense = next(iter(by_run.values()))
    for name, theirs in by_run.items():
        print(_line(name, theirs, dense))
    draw(args.out / "slow_training.png", rows)
    return rows


def rows_of(folder: Path) -> list[Row]:
    """The epochs of a run folder."""
    run = read_run(folder)
    names = ("epoch", "step", "seconds", "bytes_left", "test_accuracy")
    epochs = zip(*(run.metrics[name].tolist() for name in names), strict=True)
    return [Row(run.name, int(e), int(s), t, b, a) for e, s, t, b, a in epochs]


def read(table: Path) -> list[Row]:
    """The rows of a CSV file."""
    with open(table, newline="") as file:
        kinds = Row.__annotations__
        return [
            Row(**{name: kinds[name](text) for name, text in row.items()})
            for row in csv.DictReader(file)
        ]


def reached(rows: Sequence[Row], accuracy: float) -> Row | None:
    """The first epoch at whose end a run is at least at an accuracy.

    Example:
      >>> rows = [Row("a", i, i, 2.0 * i, 0, 0.3 * i) for i in range(1, 4)]
      >>> reached(rows, 0.5).seconds
      4.0
    """
    return next((row for row in rows if row.accuracy >= accuracy), None)


def _line(name: str, rows: Sequence[Row], dense: Sequence[Row]) -> str:
    end, goal = rows[-1], dense[-1]
    text = (
        f"{name}: {100 * end.accuracy:.2f} % after {seconds_text(end.seconds)} and "
        f"{bytes_text(end.nbytes)}"
    )
    there = reached(rows, goal.accuracy)
    wanted = f"the {100 * goal.accuracy:.2f} % at which {goal.run} ends"
    if there is None:
        return f"{text}; not at {wanted}"
    share = f"{100 * there.seconds / goal.seconds:.0f} % of its time"
    return f"{text}; at {wanted} after {seconds_text(there.seconds)}, {share}"


def draw(file: Path, rows: Sequence[Row]) -> None:
    """Accuracy over seconds and over bytes, a curve for each run."""
    with style.look():
        figure = Figure(figsize=(10.5, 4))
        seconds = figure.add_axes((0.07, 0.14, 0.36, 0.76))
        nbytes = figure.add_axes((0.5, 0.14, 0.36, 0.76))
        seconds.set_title("Test accuracy over seconds")
        nbytes.set_title("Test accuracy over bytes")
        nbytes.set_xlabel("left one worker")
        nbytes.set_xscale("log")
        seconds.set_xlabel("seconds of training")
        nbytes.xaxis.set_major_formatter(style.ticks_with(bytes_text))
        labels = [
            _curve(seconds, nbytes, name, theirs, *LOOKS[i])
            for i, (name, theirs) in enumerate(_by_run(rows).items())
        ]
        lowest = sorted(row.accuracy for row in rows)[len(_by_run(rows))]
        for axes in (seconds, nbytes):
            axes.set_ylim(lowest, 1.0)
            axes.yaxis.set_major_formatter(style.ticks_with(style.percent_tick))
        seconds.set_xlim(left=0)
        style.label_ends(nbytes, labels)
        figure.savefig(file, dpi=110)


def _curve(
    seconds: Axes,
    nbytes: Axes,
    name: str,
    rows: Sequence[Row],
    colour: str,
    marker: str,
) -> style.EndLabel:
    y = [row.accuracy for row in rows]
    seconds.plot([row.seconds for row in rows], y, f"{marker}-", color=colour)
    nbytes.plot([row.nbytes for row in rows], y, f"{marker}-", color=colour)
    text = f"{name}\n{100 * y[-1]:.2f} %"
    return style.EndLabel(text, y[-1], colour, marker)


def _by_run(rows: Sequence[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row.run for row in rows)
    return {name: [row for row in rows if row.run == name] for name in names}


if __name__ == "__main__":
    main()
