"""Data parallelism under jit: each worker's gradient, then one exchange of them.

Two stages inside the caller's program. The first takes gradients, manual over the data
axes alone: how the model is cut over other axes stays the compiler's matter. The second
is manual over all axes: a device compresses the shard that it holds and talks to those
that hold the same one, so that nothing is gathered before, and nothing sent twice.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Array, Exchange, State, Tree
from jaxcomp.nonfinite import all_finite, attempt, instead_of_bad
from jaxcomp.sharded.layout import Layout, entry, layouts, spec_of_param
from jaxcomp.specs import suggest
from jaxcomp.transform import DistributedState, distributed

__all__ = ["Comm", "DataParallel", "data_parallel"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Comm:
    """What `data_parallel` keeps between steps: global arrays, to be saved as such."""

    # One for each set of axes over which params are cut.
    links: tuple[DistributedState, ...]
    # Of each param: under jit no array tells how it is cut.
    specs: tuple[P, ...] = dataclasses.field(metadata={"static": True})


class DataParallel(NamedTuple):
    """Mean gradients under jit, by an exchange; see `data_parallel`."""

    init: Callable[[Tree], Comm]  # (params) -> comm, outside jit
    # (loss_fn, has_aux, in_axes) -> ((comm, params, *batch) -> (value, grads, comm))
    value_and_grad: Callable[..., Callable[..., tuple[Any, Tree, Comm]]]
    # The same of a function that answers (value, grads) of a worker by itself.
    averaged: Callable[..., Callable[..., tuple[Any, Tree, Comm]]]


def data_parallel(
    exchange: Exchange, mesh: Mesh, axis: str | Sequence[str] = "data", seed: int = 0
) -> DataParallel:
    """Average gradients over the data axes of a mesh by an exchange, under jit.

    `init(params)`, outside jit, gives `comm`, which is kept between steps.
    `value_and_grad(loss_fn)(comm, params, *batch)` answers `(loss, grads, comm)`: the
    means over the workers, and grads sharded like params. What follows is global.

    `loss_fn(params, *batch)` sees a worker's share of the batch, and the data axis is
    bound in it, as under pmap. `in_axes`, a prefix tree of the batch, says 0 of what is
    divided along its first axis (everything, by default) and None of what all workers
    get whole. With `has_aux=True` the loss comes with aux, which is returned with a
    leading axis of workers.

    `averaged(grad_fn)` does the same with a gradient function of one's own: it answers
    `(loss, grads)`, or `((loss, aux), grads)`, as `jax.value_and_grad(loss_fn)` does.
    It may accumulate over micro-batches, scale its loss, or take gradients of some of
    the params alone: `init` is given what gradients are like.

    Params may be cut over all axes of the mesh but those of the data. Each shard is
    compressed by itself. Params that are cut over the same axes share a message; what
    depends on all of a tree, such as the scope `whole_tree`, sees these alone.

    Args:
      exchange: from `make_exchange(..., axis=axis)`.
      mesh: on which params and batch live.
      axis: of the mesh, over which a batch is divided; a tuple for several.
      seed: of all keys, as in `distributed`.

    Example:
        >>> from jaxcomp.make import make_exchange
        >>> mesh = Mesh(jax.devices()[:1], "data")
        >>> dp = data_parallel(make_exchange(compressor="sign", axis="data"), mesh)
        >>> step = jax.jit(dp.value_and_grad(lambda w, x: jnp.mean(x @ w)))
        >>> params, batch = jnp.zeros(2), jnp.array([[1.0, -3.0]])
        >>> loss, grads, comm = step(dp.init(params), params, batch)
        >>> float(loss), grads.tolist()
        (0.0, [2.0, -2.0])
    """
    data = (axis,) if isinstance(axis, str) else tuple(axis)
    link = distributed(exchange)  # keys are passed
    _check_axes(exchange, mesh, data)

    def init(params: Tree) -> Comm:
        pairs, structure = jax.tree_util.tree_flatten_with_path(params)
        specs = tuple(spec_of_param(path, leaf, mesh, data) for path, leaf in pairs)
        plan = layouts(link.init, params, specs, mesh, data)

        def on_device(params: Tree) -> tuple[State, ...]:
            return tuple(x.stored(link.init(x.part(params))) for x in plan)

        spec_tree = jax.tree.unflatten(structure, specs)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), spec_tree)
        mapped = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(spec_tree,),
            out_specs=tuple(x.specs for x in plan),
            check_vma=False,
        )
        return Comm(jax.jit(mapped)(jax.device_put(params, shardings)), specs)

    def exchanged(grads: Tree, comm: Comm) -> tuple[Tree, Comm]:
        """The second stage; grads have a leading axis of workers."""
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), grads)
        plan = layouts(link.init, one, comm.specs, mesh, data)
        structure = jax.tree.structure(grads)

        def on_device(grads: Tree, links: tuple[State, ...]) -> tuple[Tree, Any]:
            own = jax.tree.map(lambda x: x[0], grads)
            own = instead_of_bad(own, _all_finite(own, plan))
            means: dict[int, Any] = {}
            after = []
            for layout, stored in zip(plan, links, strict=True):
                key = jax.random.key(seed)
                if layout.cut:  # shards of a tensor draw apart
                    key = jax.random.fold_in(key, jax.lax.axis_index(layout.cut))
                update = functools.partial(link.update, key=key)
                step = attempt(update, layout.part(own), layout.own(stored))
                means |= zip(layout.members, jax.tree.leaves(step.result), strict=True)
                after.append(layout.stored(step.state))
            leaves = [means[place] for place in range(len(means))]
            return jax.tree.unflatten(structure, leaves), tuple(after)

        of_means = jax.tree.unflatten(structure, comm.specs)
        of_grads = jax.tree.map(lambda spec: P(entry(data), *spec), of_means)
        of_links = tuple(x.specs for x in plan)
        mapped = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(of_grads, of_links),
            out_specs=(of_means, of_links),
            check_vma=False,  # types know no parts of an axis
        )
        means, links = mapped(grads, comm.links)
        return means, Comm(links, comm.specs)

    def averaged(
        grad_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree, Comm]]:
        def call(comm: Comm, params: Tree, *batch: Any) -> tuple[Any, Tree, Comm]:
            specs = _specs_of(in_axes, batch, mesh, data)
            leaves, structure = jax.tree.flatten((params, batch))
            specs = [P()] * (len(leaves) - len(specs)) + specs
            arrays = [i for i, x in enumerate(leaves) if _is_array(x)]

            def of_worker(own: list[jax.Array]) -> Any:
                # What is no array, such as an activation function, stays where it is.
                new = dict(enumerate(leaves)) | dict(zip(arrays, own, strict=True))
                params, batch = jax.tree.unflatten(structure, new.values())
                found = grad_fn(params, *batch)
                return jax.tree.map(lambda x: jnp.asarray(x)[None], found)

            mapped = jax.shard_map(
                of_worker,
                mesh=mesh,
                in_specs=([specs[i] for i in arrays],),
                out_specs=P(entry(data)),
                axis_names=set(data),
                check_vma=False,  # or gradients would come summed already
            )
            value, grads = mapped([leaves[i] for i in arrays])
            means, comm = exchanged(grads, comm)
            if has_aux:
                loss, aux = value
                return (jnp.mean(loss), aux), means, comm
            return jnp.mean(value), means, comm

        return call

    def value_and_grad(
        loss_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree, Comm]]:
        return averaged(jax.value_and_grad(loss_fn, has_aux=has_aux), has_aux, in_axes)

    return DataParallel(init, value_and_grad, averaged)


def _all_finite(shards: Tree, plan: list[Layout]) -> Array:
    """Whether a worker's gradient is finite, on all devices that share it.

    One that knew of its own shard alone would go on where others skip the step.
    """
    is_bad = jnp.int8(~all_finite(shards))
    cut = tuple({name: None for layout in plan for name in layout.cut})
    return (jax.lax.pmax(is_bad, cut) if cut else is_bad) == 0


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _specs_of(
    in_axes: Any, batch: tuple[Any, ...], mesh: Mesh, data: tuple[str, ...]
) -> list[P]:
    """How each leaf of the arguments of a loss is divided."""
    workers = math.prod(mesh.shape[name] for name in data)
    specs = []

    def add(axis: int | None, argument: Any) -> None:
        leaves = jax.tree.leaves(argument)
        specs.extend([P() if axis is None else P(entry(data))] * len(leaves))
        if axis is None:
            return
        if axis != 0:
            raise ValueError(f"in_axes holds 0 and None, not {axis!r}")
        for shape in map(jnp.shape, filter(_is_array, leaves)):
            if not shape or shape[0] % workers:
                message = (
                    f"an array of shape {shape} does not divide over {workers} workers "
                    "along its first axis. in_axes says None of what all workers get "
                    "whole: value_and_grad(loss_fn, in_axes=(0, None))"
                )
                raise ValueError(message)

    jax.tree.map(add, in_axes, batch, is_leaf=lambda axis: axis is None)
    return specs


def _check_axes(exchange: Exchange, mesh: Mesh, data: tuple[str, ...]) -> None:
    """Refuse axes that the mesh does not have, or that the exchange does not name."""
    for name in data:
        if name not in mesh.axis_names:
            hint = suggest(name, mesh.axis_names)
            raise ValueError(f"the mesh has no axis {name!r}. {hint}")
    if exchange.axis not in (data, entry(data)):
        message = (
            f"the exchange averages over {exchange.axis!r}, and batches are divided "
            f"over {entry(data)!r}: build it by make_exchange(..., "
            f"axis={entry(data)!r}), or say axis= in data_parallel"
        )
        raise ValueError(message)
