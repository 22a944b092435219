"""What all programs here share, and what knows nothing of compression."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.datasets import load_digits

__all__ = ["TEST", "batches", "restore", "save", "train"]

# 1,797 handwritten digits of 8 x 8 pixels.
_PIXELS, _TARGETS = load_digits(return_X_y=True)
_IMAGES = np.asarray(_PIXELS, np.float32) / 16
_LABELS = np.asarray(_TARGETS, np.int32)
TEST = (_IMAGES[1437:], _LABELS[1437:])


def batches(size: int = 128) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches for ever, in the same order each time."""
    rng = np.random.default_rng(0)
    while True:
        chosen = rng.choice(1437, size, replace=False)
        yield _IMAGES[chosen], _LABELS[chosen]


def save(file: Path, state: Any) -> None:
    """Write all arrays of a state, those of one process."""
    arrays = [x for x in jax.tree.leaves(state) if _is_array(x)]
    with open(file, "wb") as opened:
        np.savez(opened, *arrays)


def restore(file: Path, like: Any) -> Any:
    """A state with these arrays, on the devices of those in `like`."""
    with np.load(file) as stored:
        arrays = iter([stored[name] for name in stored])

    def restored(x: Any) -> Any:
        if not _is_array(x):
            return x
        placed = isinstance(x, jax.Array) and x.committed
        return jax.device_put(next(arrays), x.sharding if placed else None)

    return jax.tree.map(restored, like)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def train(
    start: Callable[[], Any], step: Callable[..., Any], accuracy: Callable[[Any], float]
) -> None:
    """200 steps; the program's argument is a file to begin from, and to save to."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    state = restore(file, start()) if file and file.exists() else start()
    for number, batch in enumerate(itertools.islice(batches(), 200), 1):
        state, loss = jax.block_until_ready(step(state, *batch))
        if number % 50 == 0:
            print(f"step {number}: loss {loss:.3f}, accuracy {accuracy(state):.1%}")
    if file:
        save(file, state)
