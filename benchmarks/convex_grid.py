"""What does a level cost at the best learning rate of a grid? D-PSGD against top-k.

    python -m benchmarks.convex_grid --out docs/measured

Every pair of a and tau, for D-PSGD and for CHOCO with the largest 1 %, with the
examples dealt at random and sorted by label. Prints for each level the fewest steps of
either method, whichever pair gave them, and what then has left a worker. Writes
convex_grid.csv, a line for each run. Levels between two epochs are read off the
straight line of log(f - f*).
"""

import argparse
import csv
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.convex import PARTITIONS, config_of, trained
from configs.convex.base import decay
from jaxcomp.core.units import bytes_text

WHOLE = "d_psgd"
COMPRESSED = "choco_top_k"
LEVELS = (3e-3, 1e-3, 3e-4, 1e-4)


class Grid(NamedTuple):
    """Pairs (a, tau) of the rate decay(a, tau) and the average quadratic(tau)."""

    a: Sequence[float] = (1, 2)
    tau: Sequence[float] = (125, 250, 500)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        return list(itertools.product(self.a, self.tau))


class Run(NamedTuple):
    """One pair of a grid."""

    a: float
    tau: float
    step_bytes: float  # that leave a worker
    steps: list[float]  # to each level; NaN where it was not reached
    end: float  # the last suboptimality


class Method(NamedTuple):
    """A config, and its run for each pair of the grid."""

    partition: str
    config: str
    mixer: str
    runs: list[Run]


def main(arguments: list[str] | None = None) -> list[Method]:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--a", type=float, nargs="+", default=Grid().a)
    parser.add_argument("--tau", type=float, nargs="+", default=Grid().tau)
    parser.add_argument("--runs", type=Path, default=Path("runs/convex"))
    parser.add_argument("--train-for", default="30 epochs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the CSV")
    args = parser.parse_args(arguments)
    found: list[Method] = []
    for partition, name in itertools.product(PARTITIONS, (WHOLE, COMPRESSED)):
        runs = measure(partition, name, Grid(args.a, args.tau), args)
        mixer = config_of(name, partition).mixer
        found.append(Method(partition, name, mixer, runs))
        ends = ", ".join(f"a={r.a:g} tau={r.tau:g}: {r.end:.2e}" for r in runs)
        print(f"{name}, {partition}, at the end: {ends}", flush=True)
    for partition in PARTITIONS:
        print(f"\n{PARTITIONS[partition]}: the fewest steps to a level")
        print_levels([method for method in found if method.partition == partition])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "convex_grid.csv", found)
        print(f"wrote convex_grid.csv in {args.out}")
    return found


def measure(partition: str, name: str, grid: Grid, args: Any) -> list[Run]:
    """Train a config with each pair of a grid."""
    runs = []
    for a, tau in grid.pairs:
        config = config_of(name, partition)
        decay(config, a, tau)
        config.seed, config.train_for = args.seed, args.train_for
        table = trained(config, args.runs / f"grid_{name}_{partition}_{a:g}_{tau:g}")
        columns = (table["step"], table["ema_suboptimality"])
        steps, above = (column.tolist() for column in columns)
        reached = [crossing(steps, above, level) for level in LEVELS]
        step_bytes = float(table["bytes_left"][-1] / steps[-1])
        runs.append(Run(a, tau, step_bytes, reached, float(above[-1])))
    return runs


def crossing(steps: Sequence[int], values: Sequence[float], level: float) -> float:
    """The step at which a value first reaches a level, or NaN if it does not.

    Between steps the logarithm of the value is interpolated linearly.

    Example:
      >>> crossing([0, 10, 20], [1.0, 0.1, 0.001], level=0.01)
      15.0
    """
    for i in range(1, len(steps)):
        if values[i] <= level:
            part = math.log(values[i - 1] / level)
            part /= math.log(values[i - 1] / values[i])
            return steps[i - 1] + part * (steps[i] - steps[i - 1])
    return math.nan


def print_levels(methods: Sequence[Method]) -> None:
    """Each method's best pair for each level."""
    print(f"{'level':>7} {'config':12} {'a':>3} {'tau':>5} {'steps':>7} {'sent':>9}")
    for i, level in enumerate(LEVELS):
        for method in methods:
            there = [run for run in method.runs if not math.isnan(run.steps[i])]
            if not there:
                print(f"{level:7.0e} {method.config:12} not reached")
                continue
            best = min(there, key=lambda run: run.steps[i])
            steps, sent = best.steps[i], best.steps[i] * best.step_bytes
            line = f"{level:7.0e} {method.config:12} {best.a:3g} {best.tau:5g} "
            line += f"{steps:7.0f} {bytes_text(sent):>9}"
            print(line)


def write_csv(file: Path, methods: Sequence[Method]) -> None:
    """A line for each run; an empty field is a level that was not reached."""
    levels = [f"steps_to_{level:g}" for level in LEVELS]
    with open(file, "w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        pair = ["a", "tau", "step_bytes"]
        writer.writerow(["partition", "config", "mixer", *pair, *levels, "end"])
        for partition, config, mixer, runs in methods:
            for run in runs:
                numbers = [f"{n:g}" for n in (run.a, run.tau, run.step_bytes)]
                steps = ["" if math.isnan(n) else f"{n:.1f}" for n in run.steps]
                row = [partition, config, mixer, *numbers, *steps, f"{run.end:.5g}"]
                writer.writerow(row)


if __name__ == "__main__":
    main()
