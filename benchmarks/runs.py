"""The bytes of the training runs that the documents quote, without a step of them.

    python -m benchmarks.runs --out docs/measured

What was measured stands in the first columns of runs.csv and stays: the config, what
was set in it, the seeds, and the score at the end (a mean over seeds; % of the test
images, or a perplexity). The others are computed from the config: `message` is what a
worker hands to collectives in the last step that sends, `left` what leaves it over the
whole run, and `exact_left` what the all-reduce of `exact` does in a ring of as many
workers.
"""

import argparse
import csv
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from jaxcomp import data, parallel
from jaxcomp.cli.config import load_config, override
from jaxcomp.training.plan import build, gather_workers, settled
from jaxcomp.training.programs import run_traffic

FILE = Path(__file__).resolve().parent.parent / "docs" / "measured" / "runs.csv"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, default=FILE.parent)
    out = parser.parse_args(arguments).out
    parallel.setup(workers=8)
    data.REGISTRY["cifar10"] = stand_in
    rows = [row | computed(row) for row in read()]
    with open(out / FILE.name, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read() -> list[dict[str, str]]:
    with open(FILE, newline="") as file:
        return list(csv.DictReader(file))


def computed(row: dict[str, str]) -> dict[str, str]:
    """The columns of a run that follow from its config.

    Args:
      row: with `config` and `settings`, which are words such as `workers=8`.
    """
    words = [f"--config.{word}" for word in shlex.split(row["settings"])]
    config: Any = override(load_config(f"configs/{row['config']}.py"), words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workers = gather_workers(config)
        setup = build(settled(config, workers), workers)
    mean, stages = run_traffic(setup)
    left, exact = (setup.total_steps * each for each in (mean.left, mean.exact))
    messages = [each.wire for each in stages.values() if each.wire]
    return {
        "workers": f"{workers.size}",
        "steps": f"{setup.total_steps}",
        "message": f"{messages[-1]:.0f}",
        "left": f"{round(left)}",
        "exact_left": f"{round(exact)}",
        "fewer": f"{exact / left:.6g}",
    }


def stand_in(data_dir: str | None = None) -> data.Dataset:
    """Black images of the number and size of CIFAR-10's: bytes depend on no more."""
    train, test = (np.zeros((n, 32, 32, 3), np.uint8) for n in (50_000, 10_000))
    labels = (np.zeros(len(images), np.int32) for images in (train, test))
    half = (0.5, 0.5, 0.5)
    return data.Dataset(
        "cifar10", train, next(labels), test, next(labels), 10, half, half
    )


if __name__ == "__main__":
    main()
