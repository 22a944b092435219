"""Data parallelism under jit: each worker's gradient, then one exchange of them.

Two stages inside the caller's program. The first takes gradients, manual over the data
axes alone: how the model is cut over other axes stays the compiler's matter. The second
is manual over all axes: a device compresses the shard that it holds and talks to those
that hold the same one, so that nothing is gathered before, and nothing sent twice.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Array, Exchange, State, Tree
from jaxcomp.nonfinite import all_finite, attempt, instead_of_bad
from jaxcomp.sharded.cuts import entry, on_devices, put, spec_of_param
from jaxcomp.sharded.data_axes import check_axes, each_worker, kinds_of
from jaxcomp.sharded.layout import Layout, first_states, in_parts, layouts
from jaxcomp.sharded.models import without_axis
from jaxcomp.transform import DistributedState, distributed
from jaxcomp.trees import label_of

__all__ = ["Comm", "DataParallel", "data_parallel"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Comm:
    """What methods keep between steps: global arrays, to be saved as such."""

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
    # Keys are passed. What is masked here is no param of the loss, and has no gradient.
    link = distributed(exchange, allow_masked=True)
    check_axes(exchange.axis, mesh, data, "the exchange averages", "exchange")

    def init(params: Tree) -> Comm:
        pairs, structure = jax.tree_util.tree_flatten_with_path(params)
        _check_differentiable(pairs)
        specs = tuple(spec_of_param(path, leaf, mesh, data) for path, leaf in pairs)
        plan = layouts(link.init, params, specs, mesh, data)
        of_params = jax.tree.unflatten(structure, specs)
        placed = put(params, of_params, mesh)
        return Comm(first_states(link.init, plan, placed, of_params, mesh), specs)

    def exchanged(grads: Tree, comm: Comm) -> tuple[Tree, Comm]:
        """The second stage; grads have a leading axis of workers."""
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), grads)
        plan = layouts(link.init, one, comm.specs, mesh, data)
        structure = jax.tree.structure(grads)

        def on_device(grads: Tree, links: tuple[State, ...]) -> tuple[Tree, Any]:
            shards = without_axis(grads)
            shards = instead_of_bad(shards, _all_finite(shards, plan))

            def update(layout: Layout, state: State, key: Any) -> tuple[Tree, State]:
                average = functools.partial(link.update, key=key)
                step = attempt(average, layout.part(shards), state)
                return step.result, step.state

            return in_parts(plan, links, seed, structure, update)

        of_means = jax.tree.unflatten(structure, comm.specs)
        of_grads = jax.tree.map(lambda spec: P(entry(data), *spec), of_means)
        of_links = tuple(x.specs for x in plan)
        specs = (of_grads, of_links), (of_means, of_links)
        means, links = on_devices(on_device, mesh, *specs)(grads, comm.links)
        return means, Comm(links, comm.specs)

    def averaged(
        grad_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree, Comm]]:
        def call(comm: Comm, *args: Any) -> tuple[Any, Tree, Comm]:
            params, *batch = _checked(comm, args)
            _check_batch(in_axes, tuple(batch))
            kinds = kinds_of(in_axes, tuple(batch), mesh, data)
            whole = [None] * len(jax.tree.leaves(params))
            value, grads = each_worker(grad_fn, args, whole + kinds, mesh, data)
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


def _check_differentiable(pairs: list[Any]) -> None:
    """Refuse what has no gradient."""
    for path, leaf in pairs:
        if hasattr(leaf, "dtype") and not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"{label_of(path)} is of {leaf.dtype}, and has no gradient: `init` is "
                "given the params that gradients are taken of"
            )


def _checked(comm: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments after `comm`; refuses them in another order."""
    if not isinstance(comm, Comm) or not args:
        raise TypeError(
            f"given are {1 + len(args)} arguments, the first a {type(comm).__name__}: "
            "call it as (comm, params, *batch), comm as `init` returned it"
        )
    return args


def _check_batch(in_axes: Any, batch: tuple[Any, ...]) -> None:
    """Refuse a loss without a batch: each worker would compute all of it."""
    if in_axes == 0 and not jax.tree.leaves(batch):
        raise ValueError(
            "no batch is given: a loss that closes over it gets all of it on every "
            "worker. Make it an argument: value_and_grad(lambda p, x: loss(p, x)), "
            "called with (comm, params, x). Workers that make their data: in_axes=()"
        )


def _all_finite(shards: Tree, plan: list[Layout]) -> Array:
    """Whether a worker's gradient is finite, on all devices that share it.

    One that knew of its own shard alone would go on where others skip the step.
    """
    is_bad = jnp.int8(~all_finite(shards))
    cut = tuple({name: None for layout in plan for name in layout.cut})
    return (jax.lax.pmax(is_bad, cut) if cut else is_bad) == 0
