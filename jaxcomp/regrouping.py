"""How what each worker has is divided among another number of workers.

Workers stand in a row of length 1, and each has an equal part of it. A new worker takes
from each old one the share of its own part that the old one had: one half of each of
two for 8 -> 4, all of one for 2 -> 16, and 3/8, 3/8 and 2/8 for 8 -> 3. So every number
of workers can follow every other one, and the mean over the workers stays.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.keys import as_keys, is_key, numbers_of

__all__ = ["averaged", "same", "shares", "succeeding_keys"]


def shares(old: int, new: int) -> list[list[tuple[int, float]]]:
    """For each new worker the old ones that it takes from, and how much from each.

    Example:
      >>> shares(4, 2)
      [[(0, 0.5), (1, 0.5)], [(2, 0.5), (3, 0.5)]]
      >>> shares(2, 3)
      [[(0, 1.0)], [(0, 0.5), (1, 0.5)], [(1, 1.0)]]
    """

    def of(worker: int) -> list[tuple[int, float]]:
        # In units of which an old worker has `new` and a new worker has `old`.
        first, end = worker * old, (worker + 1) * old
        found = []
        for j in range(first // new, -(-end // new)):
            common = min(end, (j + 1) * new) - max(first, j * new)
            found.append((j, common / old))
        return found

    return [of(worker) for worker in range(new)]


def averaged(rows: Any, new: int) -> np.ndarray:
    """The values of the new workers: weighted means of those of the old ones.

    Means are computed in float64, from differences to one of the rows. So equal rows
    give these rows again, to the bit.

    Args:
      rows: floats or complex numbers, with an axis of the old workers in front.
      new: number of workers.

    Example:
      >>> averaged(np.float32([1, 3, 5, 5]), 2), averaged(np.float32([1, 3]), 4)
      (array([2., 5.], dtype=float32), array([1., 1., 3., 3.], dtype=float32))
    """
    rows = np.asarray(rows)
    is_complex = jnp.issubdtype(rows.dtype, jnp.complexfloating)
    wide = np.complex128 if is_complex else np.float64
    result = np.empty((new, *rows.shape[1:]), rows.dtype)
    for i, parts in enumerate(shares(len(rows), new)):
        (first, _), *others = parts
        if not others:
            result[i] = rows[first]
            continue
        base = rows[first].astype(wide)
        total = base.copy()
        for j, weight in others:
            total += weight * (rows[j].astype(wide) - base)
        result[i] = total.astype(rows.dtype)
    return result


def same(rows: Any, new: int) -> np.ndarray | None:
    """The value of all workers, for the new ones; None if it is not one value.

    Example:
      >>> same(np.array([7, 7]), 3), same(np.array([7, 8]), 3)
      (array([7, 7, 7]), None)
    """
    rows = np.asarray(rows)
    if any(row.tobytes() != rows[0].tobytes() for row in rows[1:]):
        return None
    return np.repeat(rows[:1], new, axis=0)


def succeeding_keys(rows: Any, new: int) -> jax.Array:
    """Typed keys of the new workers, different where the old ones were.

    A new worker takes the key of the first worker that it takes from. If several take
    the same key, all but the first of them fold their number in.

    Args:
      rows: typed keys, with an axis of the old workers in front.
      new: number of workers.

    Example:
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> bool(jnp.all(succeeding_keys(keys, 4)[::2] == keys))
      True
    """
    assert is_key(rows)
    if (alike := same(numbers_of(rows), new)) is not None:
        return as_keys(alike, rows)
    taken: dict[int, int] = {}
    keys = []
    for (first, _), *_ in shares(len(rows), new):
        turn = taken.get(first, 0)
        taken[first] = turn + 1
        row = rows[first]
        keys.append(_folded(row, turn) if turn else row)
    return jnp.stack(keys)


def _folded(keys: jax.Array, turn: int) -> jax.Array:
    flat = jax.vmap(lambda key: jax.random.fold_in(key, turn))(keys.reshape(-1))
    return flat.reshape(keys.shape)
