"""Placement of state: marked parts have an axis of workers, other parts are copied.

All arrays are global, so the same code works for one process and for several.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jaxcomp.core.trees import as_keys, is_key, numbers_of
from jaxcomp.core.types import PerWorker, Tree, is_per_worker, is_report
from jaxcomp.parallel.collectives import entry
from jaxcomp.parallel.workers import AXIS, Workers

# Keys of `Info`, which every link marks. In a plain dict, the marks have been lost.
_REPORT = {"gradient_error", "unsent_norm", "residual_norm"}


def axes(tree: Tree) -> Tree:
    """in_axes or out_axes of state: 0 for `PerWorker` parts, None for the rest.

    Raises:
      TypeError: the state has lost its marks, as that of `nnx.state(optimizer)` has.

    Example:
      >>> axes({"step": 1, "residual": PerWorker((2, 3))})
      {'residual': PerWorker(value=0), 'step': None}
    """

    # A part without marks becomes one None: some pytree nodes take arrays only.
    def is_whole(node: Any) -> bool:
        return is_per_worker(node) or not _marked(node)

    return jax.tree.map(
        lambda node: PerWorker(0) if is_per_worker(node) else None,
        tree,
        is_leaf=is_whole,
    )


def _marked(tree: Tree) -> list[PerWorker]:
    """The marked parts of a tree; refuses a state that has lost its marks."""

    def is_whole(node: Any) -> bool:
        if isinstance(node, Mapping) and node.keys() >= _REPORT:
            raise TypeError(
                "this state was turned into plain dicts, one with the keys "
                f"{sorted(map(str, node))}, and nothing there marks what is each "
                "worker's own, such as residuals. Take the state as optax made it: "
                "tx.init(params), TrainState.opt_state, nnx.Optimizer.opt_state"
            )
        return is_per_worker(node)

    return [n for n in jax.tree.leaves(tree, is_leaf=is_whole) if is_per_worker(n)]


def place(tree: Tree, workers: Workers, axis_tree: Any) -> Tree:
    """Put host arrays on the devices of the workers.

    Args:
      tree: arrays; where the axis is 0, they hold this process's workers only.
      workers: from `setup`.
      axis_tree: a prefix tree with 0 or None.
    """

    def put(axis: int | None, x: Any) -> jax.Array:
        numbers = numbers_of(x)
        if workers.mesh is None:
            return as_keys(jnp.asarray(numbers), x)
        sharding, local = workers.sharding(axis), np.asarray(numbers)
        return as_keys(jax.make_array_from_process_local_data(sharding, local), x)

    return by_axis(put, axis_tree, tree)


def spread(state: Tree, workers: Workers | Mesh | None = None) -> Tree:
    """Place a new state on the workers, with a copy of `PerWorker` parts for each.

    Args:
      state: as `init` made it.
      workers: from `setup`, or the mesh of `jaxcomp.shard_map`; by default one on each
        device, as under `jaxcomp.pmap`.

    Example:
      >>> from jaxcomp.parallel import setup
      >>> workers = setup(workers=3, mapper="vmap")
      >>> spread(PerWorker(jnp.zeros(2)), workers).value.shape
      (3, 2)
    """
    if not isinstance(workers, Workers):
        mesh = workers or Mesh(np.array(jax.devices()), AXIS)
        workers = Workers("shard_map", mesh.size, entry(mesh.axis_names), mesh)
    count = workers.local.stop - workers.local.start

    def copied(x: Any) -> Any:
        return as_keys(np.stack([np.asarray(numbers_of(x))] * count), x)

    return place(_unshared(of_marked(copied, state)), workers, axes(state))


def _unshared(state: Tree) -> Tree:
    """The state, where an array that stands in several places is copied for each.

    An `init` that uses the same zeros twice would make a state that no mapped step can
    be given to keep: one buffer cannot be donated twice.
    """
    seen: set[int] = set()

    def own(x: Any) -> Any:
        if isinstance(x, jax.Array) and id(x) in seen:
            return x.copy()
        seen.add(id(x))
        return x

    return jax.tree.map(own, state)


def spread_spec(state: Tree, workers: Workers) -> Tree:
    """The shapes, dtypes and shardings of `spread(state)`, without any memory.

    Args:
      state: ShapeDtypeStructs, such as those of `jax.eval_shape(init)`.
      workers: from `setup`.

    Example:
      >>> from jaxcomp.parallel import setup
      >>> workers = setup(workers=3, mapper="vmap")
      >>> state = jax.eval_shape(lambda: PerWorker(jnp.zeros(2)))
      >>> spread_spec(state, workers).value.shape
      (3, 2)
    """

    return specs_of(state, axes(state), workers.size, workers.sharding)


def specs_of(
    tree: Tree,
    axis_tree: Any,
    count: int,
    sharding: Callable[[int | None], Any] = lambda axis: None,
) -> Tree:
    """Shapes and dtypes of what some workers hold together, from those of one worker.

    Args:
      tree: arrays or specs of one worker.
      axis_tree: a prefix tree with 0 or None.
      count: number of the workers.
      sharding: of the arrays with such an axis.
    """

    def describe(axis: int | None, x: Any) -> jax.ShapeDtypeStruct:
        shape = x.shape if axis is None else (count, *x.shape)
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding(axis))

    return by_axis(describe, axis_tree, tree)


def to_host(tree: Tree) -> Tree:
    """NumPy copies of the parts that this process holds; typed keys stay typed keys.

    Indexing a mapped result would first gather it from all devices.
    """

    def fetch(x: Any) -> Any:
        if is_key(x):
            return as_keys(fetch(numbers_of(x)), x)
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return np.asarray(x)
        if x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
        return np.concatenate([np.asarray(s.data) for s in shards])

    return jax.tree.map(fetch, tree)


def sum_over_processes(values: np.ndarray) -> np.ndarray:
    """The sum of a small float64 array over all processes.

    All processes must call it at the same place.
    """
    if jax.process_count() == 1:
        return values
    return of_processes(values.astype(np.float64)).sum(axis=0)


def of_processes(values: np.ndarray) -> np.ndarray:
    """A small array of each process, stacked; elements have 4 or 8 bytes.

    All processes must call it at the same place, with arrays of one shape.
    """
    # jax would round float64 to float32, so the bits are sent as integers.
    bits = multihost_utils.process_allgather(values.view(np.uint32))
    return np.asarray(bits).view(values.dtype)


def of_marked(change: Callable[[Any], Any], state: Tree) -> Tree:
    """The state with a function applied to its marked arrays."""
    return each_mark(lambda mark: jax.tree.map(change, mark), state)


def each_mark(change: Callable[[PerWorker], Any], tree: Tree) -> Tree:
    """The tree with a function applied to its `PerWorker` nodes."""
    return jax.tree.map(
        lambda n: change(n) if is_per_worker(n) else n, tree, is_leaf=is_per_worker
    )


def by_axis(
    change: Callable[[int | None, Any], Any], axis_tree: Any, tree: Tree
) -> Tree:
    """Apply a function to every array and its axis, from a prefix tree of axes."""
    return jax.tree.map(
        lambda axis, part: jax.tree.map(functools.partial(change, axis), part),
        axis_tree,
        tree,
        is_leaf=is_none,
    )


def is_none(node: Any) -> bool:
    """True for None; the `is_leaf` of trees in which None is a leaf."""
    return node is None


def with_marks(tree: Tree) -> list[tuple[tuple[Any, ...], Any, bool]]:
    """Path and value of each leaf, and whether it is marked; an `Info` is one leaf.

    Example:
      >>> [(leaf, is_marked) for _, leaf, is_marked in with_marks((1, PerWorker(2)))]
      [(1, False), (2, True)]
    """

    def is_whole(node: Any) -> bool:
        return is_per_worker(node) or is_report(node)

    return [
        ((*path, *inner), leaf, is_per_worker(node))
        for path, node in jax.tree_util.tree_flatten_with_path(tree, is_whole)[0]
        for inner, leaf in jax.tree_util.tree_flatten_with_path(node, is_report)[0]
    ]
