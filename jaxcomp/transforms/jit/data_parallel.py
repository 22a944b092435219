"""Data parallelism under jit: each worker's gradient, then one exchange of them.

A step has two stages. The first computes gradients and is manual over the data axes
only, so that the compiler cuts the model over other axes as usual. The second is manual
over all axes: each device compresses its shard and exchanges it with the devices that
hold the same shard. So no tensor is gathered first, and no element is sent twice.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcomp.core.trees import label_of
from jaxcomp.core.types import Array, Exchange, State, Tree
from jaxcomp.parallel.checks import check_patterns
from jaxcomp.transforms.distributed import DistributedState, distributed
from jaxcomp.transforms.jit import layout as on_mesh
from jaxcomp.transforms.jit.layout import Grid, Layout, in_front, layouts, without_axis
from jaxcomp.transforms.nonfinite import all_finite, attempt, instead_of_bad


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Comm:
    """The state of a method between steps, as global arrays."""

    # One for each set of axes over which params are cut.
    links: tuple[DistributedState, ...]
    # How each param is cut, which arrays under jit cannot tell.
    specs: tuple[P, ...] = dataclasses.field(metadata={"static": True})


class DataParallel(NamedTuple):
    """Mean gradients under jit, by an exchange; made by `data_parallel`.

    `init(params)`, outside jit, returns `comm`, the state between steps.
    `value_and_grad(loss_fn)(comm, params, *batch)` returns `(loss, grads, comm)`: means
    over the workers, and grads are sharded like params. The optimiser then works on
    global arrays as usual.

    Params may be cut over all axes of the mesh except those of the data. Each shard is
    compressed by itself. Params that are cut over the same axes share a message, and a
    scope that joins tensors, such as `whole_tree`, joins only such params.

    `loss_fn(params, *batch)` gets a worker's share of the batch, and may name the data
    axis in collectives, as under pmap. `in_axes`, a prefix tree of the batch, is 0 for
    arrays that are divided along their first axis (the default), and None for arrays of
    which all workers get all. With `has_aux=True` the loss function returns
    `(loss, aux)`, and aux is returned with a leading axis of workers.

    `averaged(grad_fn)` does the same for a gradient function of your own, which returns
    `(loss, grads)`, or `((loss, aux), grads)`, as `jax.value_and_grad(loss_fn)` does.
    It may accumulate over micro-batches, scale its loss, or return gradients of some
    params only; `init` is then given these params.
    """

    init: Callable[[Tree], Comm]  # (params) -> comm, outside jit
    # (loss_fn, has_aux, in_axes) -> ((comm, params, *batch) -> (value, grads, comm))
    value_and_grad: Callable[..., Callable[..., tuple[Any, Tree, Comm]]]
    # The same for a function that returns (value, grads) of a worker.
    averaged: Callable[..., Callable[..., tuple[Any, Tree, Comm]]]


def data_parallel(
    exchange: Exchange, mesh: Mesh, axis: str | Sequence[str] = "data", seed: int = 0
) -> DataParallel:
    """Average gradients over the data axes of a mesh by an exchange, under jit.

    Args:
      exchange: from `make_exchange(..., axis=axis)`.
      mesh: of params and batch.
      axis: of the mesh, over which a batch is divided; a tuple for several.
      seed: of all keys, as in `distributed`.

    Example:
      >>> from jaxcomp.transforms.make import make_exchange
      >>> mesh = Mesh(jax.devices()[:1], "data")
      >>> dp = data_parallel(make_exchange(compressor="sign", axis="data"), mesh)
      >>> step = jax.jit(dp.value_and_grad(lambda w, x: jnp.mean(x @ w)))
      >>> params, batch = jnp.zeros(2), jnp.array([[1.0, -3.0]])
      >>> loss, grads, comm = step(dp.init(params), params, batch)
      >>> float(loss), grads.tolist()
      (0.0, [2.0, -2.0])
    """
    # Keys are passed to `update`. A masked tensor here is no param of the loss.
    link = distributed(exchange._replace(patterns=()), allow_masked=True)
    grid = on_mesh.make_grid(mesh, axis, exchange)

    def init(params: Tree) -> Comm:
        pairs, structure = jax.tree_util.tree_flatten_with_path(params)
        specs = _specs(exchange, pairs, grid)
        check_patterns(exchange.patterns, params)
        plan = layouts(link.init, params, specs, grid)
        cuts = jax.tree.unflatten(structure, specs)
        states = on_mesh.first_states(link.init, plan, params, cuts, grid)
        return Comm(states, specs)

    def exchanged(grads: Tree, comm: Comm) -> tuple[Tree, Comm]:
        """The second stage: the mean of grads, which have a leading worker axis."""
        structure = jax.tree.structure(grads)
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), grads)
        plan = layouts(link.init, one, comm.specs, grid)

        def on_device(grads: Tree, links: tuple[State, ...]) -> tuple[Tree, Any]:
            shards = without_axis(grads)
            shards = instead_of_bad(shards, _all_finite(shards, plan))

            def update(layout: Layout, state: State, key: Any) -> tuple[Tree, State]:
                average = functools.partial(link.update, key=key)
                step = attempt(average, layout.part(shards), state)
                return step.result, step.state

            return on_mesh.in_parts(
                plan, links, seed, jax.tree.structure(grads), update
            )

        of_means = jax.tree.unflatten(structure, comm.specs)
        of_grads = in_front(grads, comm.specs, grid)
        of_links = tuple(x.specs for x in plan)
        specs = (of_grads, of_links), (of_means, of_links)
        means, links = grid.manual(on_device, *specs)(grads, comm.links)
        return means, Comm(links, comm.specs)

    def averaged(
        grad_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree, Comm]]:
        def call(comm: Comm, *args: Any) -> tuple[Any, Tree, Comm]:
            params, *batch = _checked(comm, args, in_axes)
            kinds = on_mesh.kinds_of(in_axes, tuple(batch), grid.workers)
            whole = [None] * len(jax.tree.leaves(params))
            value, grads = on_mesh.each_worker(grad_fn, args, whole + kinds, grid)
            means, comm = exchanged(grads, comm)
            loss = (jnp.mean(value[0]), value[1]) if has_aux else jnp.mean(value)
            return loss, means, comm

        return call

    def value_and_grad(
        loss_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree, Comm]]:
        return averaged(jax.value_and_grad(loss_fn, has_aux=has_aux), has_aux, in_axes)

    return DataParallel(init, value_and_grad, averaged)


def _specs(exchange: Exchange, pairs: list[Any], grid: Grid) -> tuple[P, ...]:
    """How params are cut, from pairs of path and leaf.

    Refuses params that are integers, which have no gradient, and cut ones where the
    exchange reads the norm of a worker's gradient.
    """
    for path, leaf in pairs:
        if hasattr(leaf, "dtype") and not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"{label_of(path)} is of {leaf.dtype}, and has no gradient: `init` is "
                "given the params that gradients are taken of"
            )
    specs = tuple(on_mesh.spec_of_param(path, x, grid) for path, x in pairs)
    cut = [path for (path, _), spec in zip(pairs, specs, strict=True) if any(spec)]
    if exchange.whole and cut:
        raise ValueError(
            f"{exchange.whole!r} clips by the norm of a worker's whole gradient, of "
            f"which no device has all, as {label_of(cut[0])} is cut over the mesh: "
            "clip in the gradient function, which `averaged` takes, or replicate the "
            "params"
        )
    return specs


def _checked(comm: Any, args: tuple[Any, ...], in_axes: Any) -> tuple[Any, ...]:
    """The arguments after `comm`; refuses another order of arguments, and no batch."""
    if not isinstance(comm, Comm) or not args:
        raise TypeError(
            f"given are {1 + len(args)} arguments, the first a {type(comm).__name__}: "
            "call it as (comm, params, *batch), comm as `init` returned it"
        )
    if in_axes == 0 and not jax.tree.leaves(args[1:]):  # each would compute the same
        raise ValueError(
            "no batch is given: a loss that closes over it gets all of it on every "
            "worker. Make it an argument: value_and_grad(lambda p, x: loss(p, x)), "
            "called with (comm, params, x). Workers that make their data: in_axes=()"
        )
    return args


def _all_finite(shards: Tree, plan: list[Layout]) -> Array:
    """Whether all shards of a worker's gradient are finite.

    A device that looked at its own shard only might go on where others skip the step.
    """
    is_bad = jnp.int8(~all_finite(shards))
    cut = tuple({name: None for layout in plan for name in layout.cut})
    return (jax.lax.pmax(is_bad, cut) if cut else is_bad) == 0
