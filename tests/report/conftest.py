"""A run folder as the trainer leaves it, in several shapes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "dataset": "cifar10",
    "model": "resnet20",
    "exchange": "gather",
    "compressor": "top_k(keep=0.01)",
    "memory": "error_feedback",
    "workers": 4,
    "batch_size": 512,
    "optimizer": {"name": "momentum", "momentum": 0.9, "nesterov": True},
    "seed": 0,
}
ENVIRONMENT = {
    "versions": {"python": "3.11.7", "jax": "0.10.0", "jaxcomp": "0.1.0"},
    "devices": ["TFRT_CPU_0", "TFRT_CPU_1", "TFRT_CPU_2", "TFRT_CPU_3"],
    "platform": "cpu",
    "git_revision": None,
    "started": "2025-11-18T14:30:00+00:00",
    "command": ["python", "train.py", "--config=configs/cifar10.py", "--note=a b"],
}
STEPS_PER_EPOCH = 100
DENSE, WIRE = 1_090_000, 21_800


def epoch_row(epoch: int, epochs: int) -> dict[str, Any]:
    """Makes a plausible row of `metrics.csv`."""
    progress = 1 - math.exp(-4 * epoch / epochs)
    wobble = 0.012 * math.sin(5 * epoch)
    return {
        "epoch": epoch,
        "step": STEPS_PER_EPOCH * epoch,
        "examples": 512 * STEPS_PER_EPOCH * epoch,
        "seconds": 12.5 * epoch,
        "learning_rate": 0.1,
        "train_loss": 2.3 - 2.1 * progress,
        "train_accuracy": 0.1 + 0.87 * progress,
        "test_loss": 2.3 - 1.9 * progress + 2 * wobble,
        "test_accuracy": 0.1 + 0.81 * progress + wobble,
        "wire_bytes_per_step": WIRE,
        "dense_bytes_per_step": DENSE,
        "bytes_left": 3.0 * WIRE * STEPS_PER_EPOCH * epoch,
        "exact_bytes_left": 1.5 * DENSE * STEPS_PER_EPOCH * epoch,
        "times_fewer": DENSE / (2 * WIRE),
        "residual_norm": 3.1 * progress + wobble,
        "gradient_error": 0.93 - 0.2 * progress,
    }


def step_row(step: int) -> dict[str, Any]:
    """Makes a plausible row of `steps.csv`; the first step compiles."""
    return {
        "step": step,
        "epoch": 1 + (step - 1) // STEPS_PER_EPOCH,
        "loss": 2.3 * math.exp(-step / 800),
        "accuracy": 0.5,
        "learning_rate": 0.1,
        "data_seconds": 0.004 + 0.001 * math.sin(step),
        "step_seconds": 14.2 if step == 10 else 0.11 + 0.004 * math.sin(3 * step),
        "wait_seconds": 0.009,
        "images_per_second": 4000 + step % 7,
        "gradient_norm": 1.0,
        "residual_norm": 2.0,
        "gradient_error": 0.8,
    }


Columns = dict[str, Any]  # a value for all rows, or a list with one for each


def write_table(path: Path, rows: list[dict[str, Any]], columns: Columns) -> None:
    """Writes rows as the trainer does, with other values in some columns."""
    for name, values in columns.items():
        many = values if isinstance(values, list) else [values] * len(rows)
        for row, value in zip(rows, many, strict=True):
            row[name] = value
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Gives a function that writes a run folder.

    The function takes the number of epochs, config entries to change, the name of the
    folder, facts of environment.json, columns of `steps.csv` and of `metrics.csv`.
    """

    def make(
        epochs: int = 12,
        config: dict[str, Any] | None = None,
        name: str = "run",
        facts: dict[str, Any] | None = None,
        steps: Columns | None = None,
        **columns: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
        environment = json.dumps(ENVIRONMENT | (facts or {}))
        (folder / "environment.json").write_text(environment)
        rows = [epoch_row(i, epochs) for i in range(1, epochs + 1)]
        write_table(folder / "metrics.csv", rows, columns)
        logged = range(10, STEPS_PER_EPOCH * epochs + 1, 10)
        write_table(folder / "steps.csv", [*map(step_row, logged)], steps or {})
        return folder

    return make
