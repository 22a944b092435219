"""Configs whose runs take a second; comparing runs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.convex import base
from jaxcomp.runs import open_run

CENTRALISED = {"mixer": "", "topology": "", "exchange": "exact", "compressor": "none"}


def small(**changes: Any) -> Any:
    """Four workers, 30 features, 30 steps."""
    config = base.get_config()
    config.update(
        problem="breast_cancer(regulariser=0.01)",
        workers=4,
        batch_size=4,
        mixer="choco(gamma=0.2)",
        compressor="top_k(keep=0.1)",
        learning_rate="decay(a=1, tau=1000)",
        average="quadratic(tau=1000)",
        train_for="30 steps",
        seeds=1,
        eval_every="10 steps",
        checkpoint_every="20 steps",
    )
    config.lock()
    config.update(changes)
    return config


def stop_at(monkeypatch: pytest.MonkeyPatch, evaluation: int) -> None:
    """Let the run be told to stop after an evaluation, as by SIGTERM."""
    asked: list[int] = []

    @contextlib.contextmanager
    def signals() -> Iterator[Any]:
        yield lambda: asked.append(1) or (15 if len(asked) == evaluation else None)

    monkeypatch.setattr(open_run, "catch_signals", signals)


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """What the state of a run holds."""
    with np.load(folder / "state.npz") as file:
        return dict(file)


def assert_same_run(a: Path, b: Path) -> None:
    """To the bit."""
    whole, parts = arrays(a), arrays(b)
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array, err_msg=name)
    assert (a / "metrics.csv").read_bytes() == (b / "metrics.csv").read_bytes()
