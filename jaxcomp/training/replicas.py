"""Whether the workers' copies of what they share are still the same, to the bit.

Each worker computes the same update from the same mean, and nothing makes the copies
equal again. A kernel that sums in another order on one device, or a device that is
broken, lets them drift apart without an error, and a checkpoint keeps one of them.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.base import Array, Tree, is_per_worker
from jaxcomp.errors import RunFailed
from jaxcomp.keys import numbers_of
from jaxcomp.training.state import TrainState
from jaxcomp.trees import name_of

__all__ = ["ReplicasDiffer", "make_replica_check"]


class ReplicasDiffer(RunFailed, ArithmeticError):
    """Workers that share one state have different copies of it."""


def make_replica_check(
    workers: parallel.Workers, state: Tree
) -> Callable[[Tree, int], None]:
    """Make a function that compares the copies of a state after a number of steps.

    Each copy is hashed where it is, and one number for each array goes to the host. A
    copy in which one number differs is always found, and others almost always.

    Args:
      workers: of the run.
      state: spread over the workers; only its shapes are used.

    Returns:
      A function (state, steps done) that raises `ReplicasDiffer`.
    """
    if workers.mesh is None or workers.size == 1 or not _shared(state):
        return lambda state, done: None
    mapped = parallel.map_step(
        lambda leaves, one: jnp.stack([one * _hash(leaf) for leaf in leaves]),
        workers,
        in_axes=(None, 0),  # pmap wants an argument that is mapped
        out_axes=0,
    )
    here = workers.local.stop - workers.local.start
    ones = parallel.place(np.ones(here, np.uint32), workers, 0)
    compiled: dict[tuple[str, ...], Any] = {}  # another optimiser shares other arrays
    each = workers.mesh.devices.flat
    devices = [str(device) for device in each for _ in range(workers.per_device)]

    def program(names: tuple[str, ...], shared: list[Any]) -> Any:
        if names not in compiled:
            compiled[names] = mapped.lower(shared, ones).compile()
        return compiled[names]

    program(*_names_and_leaves(state))

    def check(state: TrainState, done: int) -> None:
        names, shared = _names_and_leaves(state)
        local = parallel.to_host(program(names, shared)(shared, ones))
        found = parallel.of_processes(local).reshape(workers.size, len(names))
        usual = [collections.Counter(x).most_common(1)[0][0] for x in found.T.tolist()]
        different = np.argwhere(found != np.array(usual, found.dtype))
        if different.size:
            raise ReplicasDiffer(_message(different, names, devices, done))

    return check


def _shared(state: Tree) -> list[tuple[str, Any]]:
    """The names and arrays of the parts that all workers have alike."""
    nodes, _ = jax.tree_util.tree_flatten_with_path(state, is_per_worker)
    shared = [(name_of(path), x) for path, x in nodes if not is_per_worker(x)]
    return [(name, leaf) for name, leaf in shared if leaf.size]


def _names_and_leaves(state: Tree) -> tuple[tuple[str, ...], list[Any]]:
    shared = _shared(state)
    return tuple(name for name, _ in shared), [leaf for _, leaf in shared]


def _hash(x: Array) -> Array:
    """The sum of all words of an array, each times an odd number of its own."""
    x = numbers_of(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32).reshape(-1)
    # A product with an odd number is another one for each word, modulo 2^32.
    odd = jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(0x9E3779B2) | jnp.uint32(1)
    return jnp.sum(words * odd, dtype=jnp.uint32)


def _message(
    different: np.ndarray, names: Sequence[str], devices: list[str], done: int
) -> str:
    who = sorted({int(worker) for worker, _ in different})
    listed = [
        f"  worker {worker} ({devices[worker]}): {names[leaf]}"
        for worker, leaf in different[:5]
    ]
    if len(different) > 5:
        listed.append(f"  and {len(different) - 5} more")
    return "\n".join(
        [
            f"after step {done} the copies of {len(who)} of {len(devices)} workers "
            "differ from the others', in what all of them share:",
            *listed,
            "A device is broken, or a program gives other bits on one of them: see "
            "--config.deterministic. The same command goes on from the checkpoint "
            "before.",
        ]
    )
