"""Workers: how one per-worker step becomes a program for many. Alone names `jax.pmap`.

The step is written against an axis name and does not know its mapper:

- `pmap` (default) and `shard_map`: one worker on each device, on one host or several;
- `vmap`: any number of workers simulated on one device.

State crosses the border by its marks: `PerWorker` state has a leading worker axis,
everything else is identical on all workers. All arrays are global, so the same code
serves one process and several.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomp.base import PerWorker, Tree, is_per_worker

__all__ = [
    "AXIS",
    "MAPPERS",
    "Workers",
    "abstract",
    "axes",
    "map_step",
    "of_processes",
    "place",
    "setup",
    "specs",
    "spread",
    "stacked",
    "sum_over_processes",
    "to_host",
    "unstacked",
]

AXIS = "workers"
MAPPERS = ("pmap", "shard_map", "vmap")
# What every link reports, and marks: elsewhere than behind a mark, marks are lost.
_REPORT = {"gradient_error", "unsent_norm", "residual_norm"}


class Workers(NamedTuple):
    """The workers of a run and where they live."""

    mapper: str
    size: int  # their number, over all processes
    axis: str
    mesh: Mesh | None  # one device for each worker; None under vmap

    @property
    def local(self) -> slice:
        """Which workers this process holds."""
        if self.mesh is None:
            return slice(0, self.size)
        mine = [d.process_index == jax.process_index() for d in self.mesh.devices.flat]
        return slice(mine.index(True), mine.index(True) + sum(mine))


def setup(
    workers: int | None = None,
    mapper: str = "pmap",
    axis: str = AXIS,
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> Workers:
    """Prepare devices for a number of workers. Call it before anything touches jax.

    On a CPU it makes one virtual device for each worker, and gives XLA the threads
    without which queued steps of several virtual devices block each other for ever.

    Args:
      workers: number over all processes; default: the devices that exist.
      mapper: "pmap", "shard_map" or "vmap".
      axis: name of the mapped axis.
      coordinator: "host:port" of process 0, for several processes; default: the
        environment variable JAXCOMP_COORDINATOR.
      processes: their number; default: JAXCOMP_PROCESSES.
      process: index of this one; default: JAXCOMP_PROCESS.

    Example:
        >>> setup(workers=16, mapper="vmap").size
        16
    """
    if mapper not in MAPPERS:
        raise ValueError(f"unknown mapper {mapper!r}. Valid: {', '.join(MAPPERS)}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers is at least 1, not {workers}")
    processes = _start_distributed(coordinator, processes, process, mapper)
    if workers is not None and workers % processes:
        message = f"{workers} workers do not divide over {processes} processes"
        raise ValueError(message)
    if mapper == "vmap":
        return Workers(mapper, workers or 1, axis, None)
    if workers is not None:
        _make_cpu_devices(workers // processes)
    devices = jax.devices()
    count = workers or len(devices)
    if count > len(devices):
        message = (
            f"{count} workers need {count} devices and there are {len(devices)}. "
            f"Use mapper='vmap' to simulate them on one device, or call "
            "jaxcomp.parallel.setup before anything else touches jax"
        )
        raise ValueError(message)
    return Workers(mapper, count, axis, Mesh(_pick(devices, count, processes), (axis,)))


def axes(tree: Tree) -> Tree:
    """in_axes or out_axes of state: 0 for what is `PerWorker`, None for the rest.

    Example:
        >>> axes({"step": 1, "residual": PerWorker((2, 3))})
        {'residual': PerWorker(value=0), 'step': None}

    Raises:
      TypeError: the state of a link without its marks, such as `nnx.state(optimizer)`.
    """

    def axis(node: Any) -> Any:
        return PerWorker(0) if is_per_worker(node) else None

    def is_whole(node: Any) -> bool:
        if isinstance(node, Mapping) and node.keys() >= _REPORT:
            message = (
                "this state was turned into plain dicts, one with the keys "
                f"{sorted(map(str, node))}, and nothing there marks what is each "
                "worker's own, such as residuals. Take the state as optax made it: "
                "tx.init(params), TrainState.opt_state, nnx.Optimizer.opt_state"
            )
            raise TypeError(message)
        return is_per_worker(node)

    return jax.tree.map(axis, tree, is_leaf=is_whole)


def specs(tree: Tree, axis: Any = AXIS) -> Tree:
    """in_specs or out_specs of state for `jax.shard_map`, as `axes` is for pmap.

    What is marked comes in with an axis of length 1: `unstacked` takes it off.

    Example:
        >>> specs({"step": 1, "residual": PerWorker((2, 3))})["residual"].value
        P('workers',)
    """
    return jax.tree.map(
        lambda place: _partition(place, axis), axes(tree), is_leaf=_is_none
    )


def unstacked(state: Tree) -> Tree:
    """State inside `jax.shard_map`, its marked parts without the axis of length 1.

    Example:
        >>> unstacked((jnp.ones(1), PerWorker(jnp.ones((1, 2)))))[1].value.shape
        (2,)
    """
    return _of_marked(lambda x: x[0], state)


def stacked(state: Tree) -> Tree:
    """The inverse of `unstacked`: what `jax.shard_map` is to return.

    Example:
        >>> stacked((jnp.ones(1), PerWorker(jnp.ones(2))))[1].value.shape
        (1, 2)
    """
    return _of_marked(lambda x: x[None], state)


def _of_marked(change: Callable[[Any], Any], state: Tree) -> Tree:
    def changed(node: Any) -> Any:
        return jax.tree.map(change, node) if is_per_worker(node) else node

    return jax.tree.map(changed, state, is_leaf=is_per_worker)


def map_step(
    step: Callable[..., Any],
    workers: Workers,
    *,
    in_axes: Any,
    out_axes: Any,
    donate_argnums: tuple[int, ...] = (),
    check_vma: bool = False,
) -> Any:
    """Map a per-worker step over the workers.

    Args:
      step: names `workers.axis` in its collectives.
      workers: from `setup`.
      in_axes: a prefix tree of the arguments with 0 (a leading worker axis) or None
        (the same for all); `axes(state)` gives it for state.
      out_axes: the same for the results. None promises that all workers agree.
      donate_argnums: arguments whose memory the results may take.
      check_vma: for shard_map: check by types that workers agree where they should.
        `jax.grad` then sums the gradients of what all workers share.

    Returns:
      A function with `.lower(*args)`, like the ones that `jax.jit` returns. Arguments
      are global arrays, as `place` and `spread` make them.
    """
    if workers.mapper == "pmap":
        assert workers.mesh is not None
        return jax.pmap(
            step,
            axis_name=workers.axis,
            in_axes=in_axes,
            out_axes=out_axes,
            devices=tuple(workers.mesh.devices),
            axis_size=workers.size,
            donate_argnums=donate_argnums,
        )
    if workers.mapper == "shard_map":
        mapped = _shard_map(step, workers, in_axes, out_axes, check_vma)
    else:
        mapped = jax.vmap(
            step, in_axes, out_axes, axis_name=workers.axis, axis_size=workers.size
        )
    return jax.jit(mapped, donate_argnums=donate_argnums)


def place(tree: Tree, workers: Workers, axis_tree: Any) -> Tree:
    """Put host arrays on the devices of the workers.

    Args:
      tree: arrays; where the axis is 0, this process's workers only.
      workers: from `setup`.
      axis_tree: a prefix tree with 0 or None.
    """

    def put(axis: int | None, x: Any) -> jax.Array | None:
        if x is None:  # a part that is not there, as in partitioned models
            return None
        sharding = _sharding(workers, axis)
        if sharding is None:
            return jnp.asarray(x)
        return jax.make_array_from_process_local_data(sharding, np.asarray(x))

    return jax.tree.map(put, _broadcast_axes(axis_tree, tree), tree, is_leaf=_is_none)


def spread(state: Tree, workers: Workers) -> Tree:
    """Give freshly made state to the workers: a copy of each `PerWorker` part for each.

    Example:
        >>> workers = setup(workers=3, mapper="vmap")
        >>> spread(PerWorker(jnp.zeros(2)), workers).value.shape
        (3, 2)
    """
    count = workers.local.stop - workers.local.start

    copied = _of_marked(lambda x: np.stack([np.asarray(x)] * count), state)
    return place(copied, workers, axes(state))


def abstract(tree: Tree) -> Tree:
    """Shapes, dtypes and shardings of placed arrays; checkpoints restore into it."""

    def describe(x: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(describe, tree)


def to_host(tree: Tree) -> Tree:
    """NumPy copies of what this process holds.

    Indexing a mapped result instead would gather it from all devices first.
    """

    def fetch(x: Any) -> np.ndarray:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return np.asarray(x)
        if x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
        return np.concatenate([np.asarray(s.data) for s in shards])

    return jax.tree.map(fetch, tree)


def sum_over_processes(values: np.ndarray) -> np.ndarray:
    """Sum of a small float64 array over all processes, exact where they are one.

    All processes must call it at the same place.
    """
    if jax.process_count() == 1:
        return values
    return of_processes(values.astype(np.float64)).sum(axis=0)


def of_processes(values: np.ndarray) -> np.ndarray:
    """[processes, ...]: a small array of each process, of elements of 4 or 8 bytes.

    All processes must call it at the same place, with arrays of one shape.
    """
    # jax would round float64 to float32 on the way; bits travel as they are.
    bits = multihost_utils.process_allgather(values.view(np.uint32))
    return np.asarray(bits).view(values.dtype)


def _start_distributed(
    coordinator: str | None, processes: int | None, process: int | None, mapper: str
) -> int:
    """Join the other processes when there are any; returns their number."""
    environment = os.environ.get
    coordinator = coordinator or environment("JAXCOMP_COORDINATOR")
    if coordinator is None:
        return jax.process_count() if jax.distributed.is_initialized() else 1
    try:
        processes = processes or int(environment("JAXCOMP_PROCESSES", ""))
        index = environment("JAXCOMP_PROCESS", "") if process is None else process
        process = int(index)
    except ValueError:
        message = (
            f"coordinator {coordinator} needs the number of processes and the index "
            "of this one: --processes and --process, or JAXCOMP_PROCESSES and "
            "JAXCOMP_PROCESS"
        )
        raise ValueError(message) from None
    if mapper == "vmap":
        raise ValueError("mapper 'vmap' simulates workers in one process; use 'pmap'")
    if not 0 <= process < processes:
        raise ValueError(f"process {process} is not one of 0 to {processes - 1}")
    if not jax.distributed.is_initialized():
        jax.distributed.initialize(coordinator, processes, process)
    return processes


def _make_cpu_devices(count: int) -> None:
    """Virtual CPU devices and enough threads, if the backend has not started yet.

    With few cores, programs of several virtual devices wait for each other in a thread
    pool too small to run them all, and the process is aborted; two threads for each
    device cured it wherever it was seen. XLA reads NPROC once, when it starts.
    """
    threads = max(2 * count, os.cpu_count() or 1, int(os.environ.get("NPROC", 0)))
    os.environ["NPROC"] = str(threads)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # the backend runs already; `setup` compares the devices it has


def _pick(devices: list[Any], count: int, processes: int) -> np.ndarray:
    """`count` devices, equally many of each process and in its order."""
    share = count // processes
    picked = []
    for index in range(processes):
        mine = [d for d in devices if d.process_index == index]
        picked += mine[:share]
    return np.array(picked)


def _shard_map(
    step: Any, workers: Workers, in_axes: Any, out_axes: Any, check_vma: bool
) -> Any:
    """`step` under shard_map; it sees its own slice without the axis, as in pmap."""
    assert workers.mesh is not None

    def local(*args: Any) -> Any:
        full = _broadcast_axes(in_axes, args)
        own = jax.tree.map(
            lambda axis, x: x if axis is None else x[0], full, args, is_leaf=_is_none
        )
        result = step(*own)
        full = _broadcast_axes(out_axes, result)
        return jax.tree.map(
            lambda axis, x: x if axis is None else x[None],
            full,
            result,
            is_leaf=_is_none,
        )

    def specs_of(axis_tree: Any) -> Any:
        return jax.tree.map(
            lambda axis: _partition(axis, workers.axis), axis_tree, is_leaf=_is_none
        )

    return jax.shard_map(
        local,
        mesh=workers.mesh,
        in_specs=specs_of(in_axes),
        out_specs=specs_of(out_axes),
        check_vma=check_vma,
    )


def _sharding(workers: Workers, axis: int | None) -> NamedSharding | None:
    if workers.mesh is None:
        return None
    return NamedSharding(workers.mesh, _partition(axis, workers.axis))


def _partition(axis: int | None, name: str) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(name)


def _broadcast_axes(axis_tree: Any, tree: Tree) -> Tree:
    """An axis for every leaf of `tree` from a prefix tree of axes."""
    return jax.tree.map(
        lambda axis, part: jax.tree.map(lambda _: axis, part),
        axis_tree,
        tree,
        is_leaf=_is_none,
    )


def _is_none(node: Any) -> bool:
    return node is None
