"""The default config, shrunk until a run takes seconds; comparing runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import default
from jaxcomp import parallel, training
from jaxcomp.core.types import is_report
from jaxcomp.data import Augmentation
from jaxcomp.runs import open_run
from jaxcomp.training.plan import RunPlan, build, gather_workers
from jaxcomp.training.schedules import Horizon
from jaxcomp.training.segments import Calendar, RunSegments, Segment


def small_config(**changes: Any) -> ConfigDict:
    """Two workers, a tiny model, small images, 22 steps in two epochs.

    One vector is compressed: a program for every tensor takes twice as long to compile.
    Augmentation would be a quarter of the cost; kills in test_processes.py have it.
    What a run costs is its program, not its steps; changes that leave the program
    alone, such as intervals, cost next to nothing.
    """
    config = default.get_config()
    config.update(
        dataset="digits(size=8)",
        model="tiny(width=2)",
        augment="",
        workers=2,
        compressor="top_k(keep=0.1)",
        scope="whole_tree",
        batch_size=128,
        train_for="2 epochs",
        warmup="",
        log_every=4,
    )
    config.lock()
    config.update(changes)
    return config


NAN_WHERE_BLACK = "crop(pad=1) | tests.training.small:nan_where_black"


def nan_where_black() -> Augmentation:
    """Bad numbers on a worker, all of whose images are black."""

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        del key
        return jnp.where(jnp.max(images) == 0, jnp.nan, images)

    return Augmentation("nan_where_black", apply, needs="unit")


def built(config: Any) -> RunPlan:
    """What a run of a config begins with."""
    return build(config, gather_workers(config))


def segments_of(horizon: Horizon) -> RunSegments:
    """A run whose steps are all alike."""
    return RunSegments((Segment(0, {}, None, Calendar(horizon)),))


def assert_same_state(a: Any, b: Any) -> None:
    """Two train states are equal to the bit."""
    hosts = (unreported(parallel.to_host(state)) for state in (a, b))
    jax.tree.map(np.testing.assert_array_equal, *hosts)


def unreported(state: Any) -> Any:
    """A state with None for what a step reports, which is no part of it."""
    return jax.tree.map(lambda x: None if is_report(x) else x, state, is_leaf=is_report)


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file without its columns of seconds and rates."""
    lines = path.read_text().splitlines()
    header = lines[0].split(",")
    timed = {"seconds", "images_per_second"}
    return [
        {
            name: value
            for name, value in zip(header, line.split(","), strict=True)
            if name not in timed and not name.endswith("_seconds")
        }
        for line in lines[1:]
    ]


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the run be interrupted after a step, as by SIGTERM."""
    asked: list[int] = []

    class Signals:
        def __enter__(self):
            return lambda: asked.append(1) or (15 if len(asked) == step else None)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(open_run, "catch_signals", Signals)


def train_with_stops(
    config: Any, folder: Path, stops: Iterable[int], monkeypatch: pytest.MonkeyPatch
) -> training.Result:
    """Train to the end; every attempt but the last is interrupted after some steps."""
    for steps in stops:
        with monkeypatch.context() as patched:
            stop_at(patched, steps)
            with pytest.raises(training.Interrupted):
                training.train_and_evaluate(config, folder)
    return training.train_and_evaluate(config, folder)
