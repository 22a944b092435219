"""How many bytes does an optimum cost? The configs of configs/convex, side by side.

    python -m benchmarks.convex --runs runs/convex --out docs/measured

Trains each config with each seed, with the examples dealt at random and sorted by
label, or reads the folders that are there. Prints after which epoch and how many bytes
the mean of the workers' averages first reaches a level of suboptimality (the median
over the seeds), writes the medians as convex.csv and draws them as convex.png.
"""

import argparse
import csv
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import style
from jaxcomp import training
from jaxcomp.core.errors import RunFailed
from jaxcomp.core.units import bytes_text
from jaxcomp.runs.table import EPOCHS, Table, read_table


class Line(NamedTuple):
    """A config and how it is drawn."""

    config: str
    label: str
    colour: str


LINES = (
    Line("centralised", "centralised, exact", style.BLUE),
    Line("d_psgd", "D-PSGD, exact", style.INK),
    Line("choco_top_k", "CHOCO, top-k 1 %", style.ORANGE),
    Line("choco_random_k", "CHOCO, random-k 1 %", style.PINK),
    Line("choco_qsgd", "CHOCO, QSGD 4 bits", style.GREEN),
)
PARTITIONS = {
    "random": "Examples dealt at random",
    "sorted": "Examples sorted by label",
}
# The config for sorted examples, where it has other settings than the one for random.
SORTED = {"choco_top_k": "choco_sorted"}
LEVELS = (1e-1, 1e-2, 3e-3, 1e-3, 1e-4, 3e-5)
TICKS = (200, 500, 1000, 2000, 5000)  # of steps
BASELINE = "centralised"  # whose ring of all-reduces the ratio is against


class Summary(NamedTuple):
    """A line of convex.csv: an evaluation, over the seeds of a run."""

    partition: str
    config: str
    method: str
    step: int
    epoch: float
    bytes_left: int  # that have left a worker, if collectives run as rings
    suboptimality: float  # the median
    lowest: float
    highest: float
    consensus_distance: float  # the median


def main(arguments: list[str] | None = None) -> list[Summary]:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/convex"))
    parser.add_argument("--out", type=Path, help="folder for the CSV and the plot")
    parser.add_argument("--train-for", help="instead of the configs' own")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, ...")
    args = parser.parse_args(arguments)
    found: list[Summary] = []
    for partition in PARTITIONS:
        for line in LINES:
            found += _summaries(partition, line, args)
        print_levels([row for row in found if row.partition == partition])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "convex.csv", found)
        draw(args.out / "convex.png", found)
        print(f"wrote convex.csv and convex.png in {args.out}")
    return found


def reached(rows: Sequence[Summary], level: float) -> Summary | None:
    """The first evaluation at or below a level, if any; rows are in order of steps."""
    return next((row for row in rows if row.suboptimality <= level), None)


def print_levels(rows: Sequence[Summary]) -> None:
    """A table: bytes and steps to each level, and how many times fewer bytes."""
    by_config = {c: [r for r in rows if r.config == c] for c in _configs(rows)}
    print(f"\n{PARTITIONS[rows[0].partition]}: first at or below a level")
    print(f"{'config':16} {'level':>7} {'steps':>7} {'left':>9} {'fewer':>7}")
    for level in LEVELS:
        exact = reached(by_config[BASELINE], level)
        for config, own in by_config.items():
            row = reached(own, level)
            if row is None:
                print(f"{config:16} {level:7.0e} {'-':>7}")
                continue
            ratio = exact.bytes_left / row.bytes_left if exact else float("nan")
            sent = bytes_text(row.bytes_left)
            print(f"{config:16} {level:7.0e} {row.step:7} {sent:>9} {ratio:6.1f}x")


def write_csv(file: Path, rows: Sequence[Summary]) -> None:
    with open(file, "w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(Summary._fields)
        for row in rows:
            writer.writerow(
                float(f"{v:.5g}") if isinstance(v, float) else v for v in row
            )


def config_of(name: str, partition: str) -> Any:
    """The config of a line, for examples that are dealt in one of the two ways."""
    name = SORTED.get(name, name) if partition == "sorted" else name
    config = importlib.import_module(f"configs.convex.{name}").get_config()
    config.partition = partition
    return config


def trained(config: Any, folder: Path) -> Table:
    """The columns of metrics.csv of a run, which is done or goes on where it stands."""
    try:
        training.train_and_evaluate(config.lock(), folder)
    except (ValueError, RunFailed) as error:
        raise SystemExit(f"{error}") from None
    columns = (*EPOCHS.columns, "ema_suboptimality")
    return read_table(folder / "metrics.csv", EPOCHS._replace(columns=columns))


def _summaries(partition: str, line: Line, args: argparse.Namespace) -> list[Summary]:
    """Run a config, or read its finished runs, and take medians over the seeds."""
    runs, config = [], config_of(line.config, partition)
    for seed in range(args.seeds):
        config = config_of(line.config, partition)
        config.train_for = args.train_for or config.train_for
        config.seed = seed
        runs.append(trained(config, args.runs / f"{line.config}_{partition}_{seed}"))
        end = runs[-1]["ema_suboptimality"][-1]
        print(f"{line.config}, {partition}, seed {seed}: {end:.3g}", flush=True)
    return _joined(partition, line.config, _method(config), runs)


def _method(config: Any) -> str:
    return f"{config.mixer or config.exchange}, {config.compressor}"


def _joined(
    partition: str, config: str, method: str, runs: Sequence[Table]
) -> list[Summary]:
    """A line for each epoch, over the runs."""
    above, apart = (
        np.stack([run[name] for run in runs])
        for name in ("ema_suboptimality", "consensus_distance")
    )
    return [
        Summary(
            partition=partition,
            config=config,
            method=method,
            step=int(runs[0]["step"][i]),
            epoch=float(runs[0]["epoch"][i]),
            bytes_left=round(float(runs[0]["bytes_left"][i])),
            suboptimality=float(np.median(above[:, i])),
            lowest=float(above[:, i].min()),
            highest=float(above[:, i].max()),
            consensus_distance=float(np.median(apart[:, i])),
        )
        for i in range(above.shape[1])
    ]


def draw(file: Path, found: Sequence[Summary]) -> None:
    """Suboptimality over bytes and over steps, a row for each way to deal."""
    with style.look():
        figure = Figure(figsize=(11.1, 8.3), layout="constrained")
        rows = figure.subplots(len(PARTITIONS), 2, sharey="row")
        for axes, (partition, title) in zip(rows, PARTITIONS.items(), strict=True):
            one = [row for row in found if row.partition == partition]
            axes[0].set_title(title)
            axes[0].set_ylabel("f(x) − f*")
            _curves(axes[0], one, "bytes_left", "left one worker since the start")
            axes[0].xaxis.set_major_formatter(style.ticks_with(bytes_text))
            _curves(axes[1], one, "step", "steps")
            axes[1].set_xticks(TICKS, [f"{steps:,}" for steps in TICKS])
        rows[0, 1].legend(frameon=False)
        figure.savefig(file, dpi=200)


def _curves(axes: Axes, rows: Sequence[Summary], column: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=title)
    axes.xaxis.set_minor_formatter("")  # their numbers would overlap
    for line in LINES:
        own = [row for row in rows if row.config == line.config]
        x = [getattr(row, column) for row in own]
        axes.plot(x, [row.suboptimality for row in own], line.colour, label=line.label)
        low, high = [row.lowest for row in own], [row.highest for row in own]
        axes.fill_between(x, low, high, color=line.colour, alpha=0.18, lw=0)


def _configs(rows: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(row.config for row in rows))


if __name__ == "__main__":
    main()
