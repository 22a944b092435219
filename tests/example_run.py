"""Runs one of the programs in examples/ as a process of its own; see test_examples.py.

python -m tests.example_run NAME FILE
"""

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxcomp
from examples.common import batches, restore, save

WORKERS = 4


def main(name: str, file: Path) -> None:
    jaxcomp.parallel.setup(WORKERS)
    program = importlib.import_module(f"examples.{name}")
    feed = list(itertools.islice(batches(), 70))

    state = advanced(program, program.start(), feed[:5])
    save(file, state)
    last = arrays(advanced(program, state, feed[5:10]))
    state = advanced(program, restore(file, program.start()), feed[5:10])
    for a, b in zip(last, arrays(state), strict=True):
        np.testing.assert_array_equal(a, b)
    print("restored to the bit:", len(last), "arrays")

    before = arrays(params_of(state))
    images, labels = feed[10]
    images = images.copy()
    images[-1] = np.nan  # the share of the last device
    state, loss = jax.block_until_ready(program.step(state, images, labels))
    assert np.isnan(loss)
    for a, b in zip(before, arrays(params_of(state)), strict=True):
        np.testing.assert_array_equal(a, b)
    state = advanced(program, state, feed[10:])
    jaxcomp.check_state(state)
    assert all(np.isfinite(x).all() for x in arrays(state) if x.dtype.kind == "f")
    print(f"accuracy: {program.accuracy(state):.3f}")


def advanced(program: Any, state: Any, feed: Any) -> Any:
    for batch in feed:
        state, _ = jax.block_until_ready(program.step(state, *batch))
    return state


def params_of(state: Any) -> Any:
    if isinstance(state, dict):
        return state["params"]
    return state.model if hasattr(state, "model") else state.params


def arrays(state: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(state)
    return [np.array(x) for x in leaves if isinstance(x, jax.Array | np.ndarray)]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
