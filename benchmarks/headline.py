"""The picture of README.md: accuracy over bytes, and step time over bandwidth.

    python -m benchmarks.headline --out docs/measured

It draws what is in network.csv and slow_training.csv of that folder, which
`benchmarks.network` and `benchmarks.slow_training` have measured, and measures nothing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks import network_report, slow_training, style
from benchmarks.network_plot import LOOKS
from jaxcomp.core.units import bytes_text, seconds_text

COMPUTE = 0.2  # seconds of forward and backward pass, that every step has
METHODS = (
    *("exact", "DDP: no hook", "sign"),
    *("power_sgd(rank=2)", "top_k(keep=0.001), whole_tree"),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/measured"))
    args = parser.parse_args(arguments)
    runs = slow_training.read(args.out / "slow_training.csv")
    rows = network_report.read(args.out / "network.csv")
    draw(args.out / "headline.png", runs, rows)


def draw(
    file: Path,
    runs: Sequence[slow_training.Row],
    rows: Sequence[network_report.Row],
) -> None:
    """Draw both panels.

    Args:
      file: of the plot.
      runs: epochs of a run with whole gradients and of one with compressed ones.
      rows: exchanges at several rates.
    """
    with style.look():
        figure = Figure(figsize=(11, 3.7))
        left = figure.add_axes((0.055, 0.14, 0.27, 0.76))
        right = figure.add_axes((0.55, 0.14, 0.28, 0.76))
        _accuracy(left, runs)
        _step_times(right, rows)
        figure.savefig(file, dpi=130)


def _accuracy(axes: Axes, runs: Sequence[slow_training.Row]) -> None:
    axes.set_title("Accuracy over bytes")
    axes.set_xlabel("left one worker")
    labels = []
    for look, name in zip(LOOKS, dict.fromkeys(row.run for row in runs), strict=False):
        theirs = [row for row in runs if row.run == name]
        x, y = [row.nbytes for row in theirs], [row.accuracy for row in theirs]
        axes.plot(x, y, f"{look.marker}-", color=look.colour, markersize=4)
        text = f"{name}: {100 * y[-1]:.1f} %\nafter {theirs[-1].epoch} epochs"
        labels.append(style.EndLabel(text, y[-1], look.colour, look.marker))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(style.ticks_with(bytes_text))
    axes.set_ylim(sorted(row.accuracy for row in runs)[2], 1.0)
    axes.yaxis.set_major_formatter(style.ticks_with(style.percent_tick))
    style.label_ends(axes, labels)


def _step_times(axes: Axes, rows: Sequence[network_report.Row]) -> None:
    axes.set_title("Step time over bandwidth")
    rows = network_report.shown(rows)
    labels = []
    for look, method in zip(LOOKS, METHODS, strict=False):
        theirs = sorted(
            (row for row in rows if row.method == method), key=lambda row: row.measured
        )
        x = [row.measured for row in theirs]
        y = [COMPUTE + row.ms / 1e3 for row in theirs]
        axes.plot(x, y, f"{look.marker}-", color=look.colour, markersize=4)
        name = method.removesuffix(", whole_tree")
        labels.append(style.EndLabel(name, y[-1], look.colour, look.marker))
    axes.axhline(COMPUTE, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.9 * COMPUTE)
    axes.set_xlabel("Mbit/s")
    axes.set_xticks(sorted({row.rate for row in rows}))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(style.ticks_with(lambda mbit: f"{mbit:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(style.ticks_with(seconds_text))
    style.label_ends(axes, labels)


if __name__ == "__main__":
    main()
