"""Mapping of a step of one worker to all workers. Only this file names `jax.pmap`.

A step names an axis and does not depend on its mapper. pmap and shard_map run one
worker on each device, and shard_map also several; vmap simulates any number of workers
on one device. `PerWorker` marks say which state has an axis of workers outside the
mapped step.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcomp.core.trees import label_of
from jaxcomp.core.types import PerWorker, Tree, is_per_worker
from jaxcomp.parallel.collectives import entry
from jaxcomp.parallel.placing import by_axis, each_mark, is_none, of_marked
from jaxcomp.parallel.workers import Workers, partition


class Mapped(NamedTuple):
    """A mapped step, which can be called or lowered."""

    run: Callable[..., Any]  # made by `jax.pmap`; takes and returns pairs, see `_pair`
    in_axes: Any

    def __call__(self, *args: Any) -> Any:
        _check_axes(self.in_axes, args)
        return _joined(self.run(*map(_checked, args)))

    def lower(self, *args: Any) -> Any:
        """Like `lower` of a function that `jax.jit` returned."""
        _check_axes(self.in_axes, args)
        return self.run.lower(*map(_checked, args))  # pyright: ignore[reportFunctionMemberAccess]


def pmap(
    step: Callable[..., Any],
    axis_name: str,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    **options: Any,
) -> Mapped:
    """`jax.pmap` for arguments of which some parts are marked `PerWorker`.

    Marked parts are mapped along their leading axis, whatever `in_axes` says of the
    argument that holds them. So `in_axes=(None, 0)` is right for a training state with
    residuals.

    Args:
      step: of one worker.
      axis_name: as of `jax.pmap`.
      in_axes: the same, and `out_axes` too.
      options: `devices`, `axis_size` or `donate_argnums`, as of `jax.pmap`.

    Example:
      >>> from jaxcomp.parallel import spread
      >>> def step(state, x):
      ...     return {"sum": jax.lax.psum(x, "i"), "own": PerWorker(x)}
      >>> devices = jax.devices()[:1]
      >>> state = {"sum": np.float32(0), "own": PerWorker(np.float32([0]))}
      >>> mapped = pmap(step, "i", in_axes=(None, 0), out_axes=None, devices=devices)
      >>> mapped(state, np.float32([3]))["own"]
      PerWorker(value=Array([3.], dtype=float32))
    """

    def on_pairs(*pairs: Any) -> Any:
        return _pair(step(*map(_joined, pairs)))

    paired = in_axes
    if isinstance(in_axes, Sequence):
        paired = tuple((axis, 0) for axis in in_axes)
    options |= {"in_axes": paired, "out_axes": (out_axes, 0)}
    return Mapped(jax.pmap(on_pairs, axis_name, **options), in_axes)


def shard_map(
    step: Callable[..., Any],
    *,
    mesh: Mesh,
    in_specs: Any,
    out_specs: Any,
    axis: Any = None,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.shard_map` for arguments of which some parts are marked `PerWorker`.

    Marked parts are cut along their leading axis, whatever the specs say of the
    argument that holds them. The step gets its worker's entry, without that axis.

    Args:
      step: of one worker.
      mesh: as of `jax.shard_map`.
      in_specs: as of `jax.shard_map`, a tuple with one for each argument.
      out_specs: the same.
      axis: of the workers; by default all axes over which `step` is mapped.
      options: `axis_names` or `check_vma`, as of `jax.shard_map`.

    Example:
      >>> from jax.sharding import PartitionSpec as P
      >>> def step(state, x):
      ...     return {"sum": jax.lax.psum(x, "i"), "own": PerWorker(x[0])}
      >>> mesh = Mesh(jax.devices()[:1], "i")
      >>> mapped = shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
      >>> state = {"sum": np.float32([0]), "own": PerWorker(np.float32([0]))}
      >>> mapped(state, np.float32([3]))["own"]
      PerWorker(value=Array([3.], dtype=float32))
    """
    names = options.get("axis_names") or mesh.axis_names
    of_marked_parts = partition(0, axis or entry(tuple(names)))

    def on_pairs(*pairs: Any) -> Any:
        slices = [of_marked(lambda x: x[0], _joined(pair)) for pair in pairs]
        return _pair(of_marked(lambda x: x[None], step(*slices)))

    mapped = jax.shard_map(
        on_pairs,
        mesh=mesh,
        in_specs=tuple((spec, of_marked_parts) for spec in in_specs),
        out_specs=(out_specs, of_marked_parts),
        **options,
    )

    def call(*args: Any) -> Any:
        return _joined(mapped(*map(_checked, args)))

    return call


def _pair(tree: Tree) -> tuple[Tree, list[PerWorker]]:
    """A tree with empty marks in place of its marked parts, and a list of these."""
    nodes = jax.tree.leaves(tree, is_leaf=is_per_worker)
    rest = each_mark(lambda mark: PerWorker(()), tree)
    return rest, [node for node in nodes if is_per_worker(node)]


def _checked(argument: Tree) -> tuple[Tree, list[PerWorker]]:
    """The pair of an argument; refuses marked parts without an axis of workers."""
    rest, marked = _pair(argument)
    # Some parts of an exchange's state are single numbers before they are spread.
    if any(np.ndim(x) == 0 for x in jax.tree.leaves(marked)):
        raise ValueError(
            "state that is each worker's own has no axis of workers: call "
            "state = jaxcomp.parallel.spread(state) once, before the loop"
        )
    return rest, marked


def _check_axes(in_axes: Any, args: tuple[Any, ...]) -> None:
    """Refuse single numbers in an argument whose `in_axes` says 0."""
    each = in_axes if isinstance(in_axes, Sequence) else [in_axes] * len(args)
    for axis, argument in zip(each, args, strict=False):
        if axis != 0:
            continue
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]:
            if np.ndim(leaf) == 0:
                raise ValueError(
                    f"{label_of(path)} has no axis of workers, and in_axes says 0 of "
                    "the argument that holds it. What `spread` returns is for "
                    "in_axes=None; in a loop that replicates all of its state give "
                    "that one to flax.jax_utils.replicate in place of `spread`"
                )


def _joined(pair: tuple[Tree, list[PerWorker]]) -> Tree:
    """The inverse of `_pair`."""
    rest, marked = pair
    parts = iter(marked)
    return each_mark(lambda mark: next(parts), rest)


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
      step: of one worker; its collectives name `workers.axis`.
      workers: from `setup`.
      in_axes: a prefix tree of the arguments with 0 (a leading worker axis) or None
        (the same for all workers); `axes(state)` returns it for state.
      out_axes: the same for the results. None promises that all workers have the same.
      donate_argnums: arguments whose memory the results may take.
      check_vma: for shard_map: check by types that results without a worker axis are
        the same on all workers. `jax.grad` then sums gradients of params that all
        workers share.

    Returns:
      A function with `.lower(*args)`, like the ones that `jax.jit` returns. Arguments
      are global arrays, as `place` and `spread` make them.

    Raises:
      ValueError: `check_vma`, where workers share a device: types know no lanes.
    """
    if check_vma and workers.per_device > 1:
        message = f"check_vma with {workers.per_device} workers on each device"
        raise ValueError(f"{message}: types know the axis of devices only")
    if workers.mapper == "shard_map":
        mapped = _shard_map(step, workers, in_axes, out_axes, check_vma)
        return jax.jit(mapped, donate_argnums=donate_argnums)
    axis: Any = {"axis_name": workers.axis, "axis_size": workers.size}
    axis |= {"out_axes": out_axes}
    if workers.mapper == "vmap":
        mapped = jax.vmap(step, in_axes=in_axes, **axis)
        return jax.jit(mapped, donate_argnums=donate_argnums)
    assert workers.mesh is not None
    devices = tuple(workers.mesh.devices)
    options = {**axis, "devices": devices, "donate_argnums": donate_argnums}
    return _pmap_of_arrays(step, in_axes, options)


class _Late(NamedTuple):
    """A mapped step that is made when its arguments are known."""

    of: Callable[[Any], Any]  # arguments -> what `jax.pmap` returns for them

    def __call__(self, *args: Any) -> Any:
        return self.of(args)(*args)

    def lower(self, *args: Any) -> Any:
        """Like `lower` of a function that `jax.jit` returned."""
        return self.of(args).lower(*args)


def _pmap_of_arrays(
    step: Callable[..., Any], in_axes: Any, options: dict[str, Any]
) -> _Late:
    """`jax.pmap` with an axis for each array of the arguments.

    jax 0.10 takes one for each argument as one for each array if there are as many of
    both, also where one argument has two arrays and another one none.
    """
    made: dict[Any, Any] = {}

    def of(args: Any) -> Any:
        structure = jax.tree.structure(args)
        if structure not in made:
            each = by_axis(lambda axis, x: axis, in_axes, args)
            made[structure] = jax.pmap(step, in_axes=each, **options)
        return made[structure]

    return _Late(of)


def on_device(
    step: Callable[..., Any], workers: Workers, *, in_axes: Any, out_axes: Any
) -> Callable[..., Any]:
    """What a device runs: the step of its workers, with an axis of them in front.

    Args:
      step: of one worker.
      workers: from `setup`.
      in_axes: as of `map_step`.
      out_axes: the same.
    """
    if workers.per_device > 1:
        return jax.vmap(
            step,
            in_axes=in_axes,
            out_axes=out_axes,
            axis_name=workers.axis.lanes,
            axis_size=workers.per_device,
        )

    def alone(*args: Any) -> Any:
        slices = by_axis(lambda axis, x: x if axis is None else x[0], in_axes, args)
        result = step(*slices)
        return by_axis(lambda axis, x: x if axis is None else x[None], out_axes, result)

    return alone


def _shard_map(
    step: Any, workers: Workers, in_axes: Any, out_axes: Any, check_vma: bool
) -> Any:
    """`step` under shard_map, cut along the axis of workers."""
    assert workers.mesh is not None

    def specs_of(axes: Any) -> Any:
        over = workers.device_axis
        return jax.tree.map(lambda axis: partition(axis, over), axes, is_leaf=is_none)

    return jax.shard_map(
        on_device(step, workers, in_axes=in_axes, out_axes=out_axes),
        mesh=workers.mesh,
        in_specs=specs_of(in_axes),
        out_specs=specs_of(out_axes),
        check_vma=check_vma,
    )
