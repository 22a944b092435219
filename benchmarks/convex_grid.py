"""What does a level cost at the best learning rate of a grid? D-PSGD against top-k.

    python -m benchmarks.convex_grid --out docs/measured

Every pair of a and tau, for D-PSGD and for CHOCO with the largest 1 %, with the
examples dealt at random and sorted by label. Prints for each level the fewest steps of
either method, whichever pair gave them, and how many times fewer bytes top-k sends.
Writes convex_grid.csv, a line for each run. Levels between two evaluations are read off
the straight line of log(f - f*).
"""

import argparse
import csv
import importlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.convex import PARTITIONS, SORTED
from jaxcomp.convex import Facts, make_average, make_rate
from jaxcomp.convex.experiment import Experiment, build, partition_of
from jaxcomp.convex.problems import objective
from jaxcomp.convex.runner import Crew, batches_between, make_simulation
from jaxcomp.core.units import bytes_text

__all__ = ["LEVELS", "Grid", "Method", "Run", "crossing", "main", "measure"]

WHOLE = "d_psgd"
COMPRESSED = "choco_top_k"
LEVELS = (1e-2, 5e-3, 3e-3, 1e-3, 1e-4)


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
    step_bytes: float
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
    parser.add_argument("--problem", help="instead of the configs' own")
    parser.add_argument("--train-for", default="30 epochs")
    parser.add_argument("--eval-every", default="50 steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the CSV")
    args = parser.parse_args(arguments)
    found: list[Method] = []
    for partition, name in itertools.product(PARTITIONS, (WHOLE, COMPRESSED)):
        name = SORTED.get(name, name) if partition == "sorted" else name
        config = importlib.import_module(f"configs.convex.{name}").get_config()
        config.partition = partition
        config.problem = args.problem or config.problem
        for key in ("train_for", "eval_every", "seed"):
            setattr(config, key, getattr(args, key))
        try:
            runs = measure(config.lock(), Grid(args.a, args.tau))
        except ValueError as error:
            raise SystemExit(f"{error}") from None
        found.append(Method(partition, name, config.mixer, runs))
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


def measure(config: Any, grid: Grid) -> list[Run]:
    """Run all pairs of a grid in one program, by vmap over tables of their rates.

    Args:
      config: of a convex run; its learning rate and its average are not used.
      grid: the pairs.
    """
    experiment = build(config)
    divided = partition_of(config, experiment.problem.labels, config.seed)
    rates, shares = _tables(experiment, grid)

    def start(rate: jax.Array, share: jax.Array) -> Crew:
        return make_simulation(_with(experiment, rate, share)).start()

    def advance(rate: jax.Array, share: jax.Array, crew: Crew, batches: Any) -> Crew:
        own = make_simulation(_with(experiment, rate, share))
        return own.advance(crew, batches, config.seed)

    program = jax.jit(jax.vmap(advance, in_axes=(0, 0, 0, None)))
    crews = jax.vmap(start)(rates, shares)
    value = objective(experiment.problem).value
    begun = value(np.zeros(experiment.problem.dimension)) - experiment.optimum.value
    places, above = [0], [[begun] * len(grid.pairs)]
    while places[-1] < experiment.total_steps:
        first = places[-1]
        last = min(first + experiment.eval_steps, experiment.total_steps)
        batches = batches_between(divided, config.batch_size, first, last)
        crews = program(rates, shares, crews, jnp.asarray(batches, jnp.int32))
        means = np.asarray(crews.averages, np.float64).mean(axis=1)
        places.append(last)
        above.append([value(x) - experiment.optimum.value for x in means])
    step_bytes = sum(experiment.traffic.wire) / len(experiment.traffic.wire)
    return [
        Run(a, tau, step_bytes, [crossing(places, own, v) for v in LEVELS], own[-1])
        for (a, tau), own in zip(grid.pairs, zip(*above, strict=True), strict=True)
    ]


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


def _tables(experiment: Experiment, grid: Grid) -> tuple[jax.Array, jax.Array]:
    """Rates, and shares of x_t in the average, [pairs, steps]."""
    steps = jnp.arange(experiment.total_steps)
    facts = Facts(experiment.problem.regulariser, experiment.horizon.steps_per_epoch)
    rates, shares = [], []
    for a, tau in grid.pairs:
        average = make_average(f"quadratic(tau={tau})")
        rates.append(make_rate(f"decay(a={a}, tau={tau})", facts)(steps))
        shares.append(average(jnp.zeros(len(steps)), jnp.ones(len(steps)), steps))
    return jnp.stack(rates), jnp.stack(shares)


def _with(experiment: Experiment, rate: jax.Array, share: jax.Array) -> Experiment:
    """An experiment whose rate and average are read from tables, also traced ones."""
    return experiment._replace(
        rate=lambda t: rate[t],
        average=lambda before, x, t: before + share[t] * (x - before),
    )


if __name__ == "__main__":
    main()
