"""Does an exchange still train with many workers? 16 to 256 of them, simulated by vmap.

Each run trains a small network on the embedded digits with the same batch in total, cut
into more and more parts: with 256 workers, each sees one image in a step. The network
has no BatchNorm, because one image has no statistics. The times of one device that
plays all workers say nothing, so they are not written; the bytes are those of the
traced step, as `jaxcomp.wire` counts them.

    python -m benchmarks.simulated_workers --out build
    python -m benchmarks.simulated_workers --out build --train-for "2 steps"
"""

import argparse
import csv
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from benchmarks.common import write_csv
from configs import default
from jaxcomp.training.loop import train_and_evaluate


class Method(NamedTuple):
    """An exchange and how it is called in the table."""

    title: str
    exchange: str
    compressor: str = "none"
    memory: str = "error_feedback"


METHODS = (
    Method("exact", "exact", memory="none"),
    Method("gather(top_k(keep=0.02))", "gather", "top_k(keep=0.02)"),
    Method("two_phase(sign)", "two_phase", "sign"),
)
BATCH = 256  # of all workers together


class Plain(nn.Module):
    """Three convolutions and a dense layer, without normalisation."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        x = images
        for features, stride in ((16, 1), (32, 2), (64, 2)):
            kernel = nn.initializers.he_normal()
            x = nn.Conv(features, (3, 3), stride, kernel_init=kernel)(x)
            x = nn.relu(x)
        return nn.Dense(self.num_classes)(x.reshape(len(x), -1))


class Row(NamedTuple):
    """The end of a run."""

    method: str
    workers: int
    seed: int
    steps: int
    nbytes: int  # that a worker hands to collectives in a step
    test_accuracy: float  # at the end
    best_accuracy: float


def main(arguments: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    add("--workers", nargs="+", type=int, default=(4, 16, 64, 256))
    add("--seeds", nargs="+", type=int, default=(0, 1, 2))
    add("--train-for", default="30 epochs", metavar="DURATION")
    add("--out", type=Path, required=True, help="folder for the CSV")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "simulated_workers.csv"
    rows: list[Row] = []
    for workers in args.workers:
        for method in METHODS:
            for seed in args.seeds:
                rows.append(_run(method, workers, seed, args.train_for))
                write_csv(file, rows)
    print(table(rows))
    return rows


def config_of(method: Method, workers: int, seed: int, train_for: str) -> ConfigDict:
    """The defaults of configs/ with a method and simulated workers."""
    config = default.get_config()
    config.mapper, config.workers, config.seed = "vmap", workers, seed
    config.exchange, config.compressor = method.exchange, method.compressor
    config.memory, config.scope = method.memory, "whole_tree"
    config.batch_size, config.train_for = BATCH, train_for
    config.learning_rate = 0.05  # without normalisation, signs are unstable at 0.1
    config.model = "benchmarks.simulated_workers:Plain"
    return config


def _run(method: Method, workers: int, seed: int, train_for: str) -> Row:
    config = config_of(method, workers, seed, train_for)
    with tempfile.TemporaryDirectory() as folder:
        done = train_and_evaluate(config, folder)
        with open(Path(folder) / "metrics.csv", newline="") as file:
            last = list(csv.DictReader(file))[-1]
    return Row(
        method=method.title,
        workers=workers,
        seed=seed,
        steps=done.steps,
        nbytes=int(float(last["wire_bytes_per_step"])),
        test_accuracy=done.test_accuracy,
        best_accuracy=done.best,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown, a column for each number of workers."""
    sizes = list(dict.fromkeys(row.workers for row in rows))
    lines = [["exchange", *(f"{size} workers" for size in sizes)]]
    lines.append(["---"] * len(lines[0]))
    for method in dict.fromkeys(row.method for row in rows):
        cells = [f"`{method}`"]
        for size in sizes:
            theirs = [r for r in rows if (r.method, r.workers) == (method, size)]
            cells.append(f"{_ends(theirs)}; {theirs[0].nbytes:,} B")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _ends(rows: Sequence[Row]) -> str:
    """The accuracy at the end: of several seeds the mean, the least and the most."""
    found = [100 * row.test_accuracy for row in rows]
    spread = f" ({min(found):.1f} to {max(found):.1f})" if len(rows) > 1 else ""
    return f"{statistics.mean(found):.1f} %{spread}"


if __name__ == "__main__":
    main()
