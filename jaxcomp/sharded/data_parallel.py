"""Data parallelism under jit: each worker's gradient, then one exchange of them.

Two stages inside the caller's program. The first takes gradients, manual over the data
axes alone: how the model is cut over other axes stays the compiler's matter. The second
is manual over all axes: a device compresses the shard that it holds and talks to those
that hold the same one, so that nothing is gathered before, and nothing sent twice.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Exchange, State, Tree
from jaxcomp.sharded.layout import entry, layouts, spec_of_param
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

    def exchanged(grads: Tree, comm: Comm, params: Tree) -> tuple[Tree, Comm]:
        """The second stage; grads have a leading axis of workers."""
        plan = layouts(link.init, params, comm.specs, mesh, data)
        structure = jax.tree.structure(params)

        def on_device(grads: Tree, links: tuple[State, ...]) -> tuple[Tree, Any]:
            own = jax.tree.map(lambda x: x[0], grads)
            means: dict[int, Any] = {}
            after = []
            for layout, stored in zip(plan, links, strict=True):
                key = jax.random.key(seed)
                if layout.cut:  # shards of a tensor draw apart
                    key = jax.random.fold_in(key, jax.lax.axis_index(layout.cut))
                mean, state = link.update(layout.part(own), layout.own(stored), key=key)
                means |= zip(layout.members, jax.tree.leaves(mean), strict=True)
                after.append(layout.stored(state))
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

    def value_and_grad(
        loss_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree, Comm]]:
        of_one = jax.value_and_grad(loss_fn, has_aux=has_aux)

        def of_worker(params: Tree, batch: tuple[Any, ...]) -> Any:
            return jax.tree.map(lambda x: jnp.asarray(x)[None], of_one(params, *batch))

        def call(comm: Comm, params: Tree, *batch: Any) -> tuple[Any, Tree, Comm]:
            mapped = jax.shard_map(
                of_worker,
                mesh=mesh,
                in_specs=(P(), _batch_specs(in_axes, batch, mesh, data)),
                out_specs=P(entry(data)),
                axis_names=set(data),
                check_vma=False,  # or gradients would come summed already
            )
            value, grads = mapped(params, batch)
            means, comm = exchanged(grads, comm, params)
            if has_aux:
                loss, aux = value
                return (jnp.mean(loss), aux), means, comm
            return jnp.mean(value), means, comm

        return call

    return DataParallel(init, value_and_grad)


def _batch_specs(
    in_axes: Any, batch: tuple[Any, ...], mesh: Mesh, data: tuple[str, ...]
) -> Any:
    """How the arguments of a loss are divided, as a prefix tree."""
    workers = math.prod(mesh.shape[name] for name in data)

    def spec(axis: int | None, argument: Any) -> P:
        if axis is None:
            return P()
        if axis != 0:
            raise ValueError(f"in_axes holds 0 and None, not {axis!r}")
        for shape in map(jnp.shape, jax.tree.leaves(argument)):
            if not shape or shape[0] % workers:
                message = (
                    f"an array of shape {shape} does not divide over {workers} workers "
                    "along its first axis. in_axes says None of what all workers get "
                    "whole: value_and_grad(loss_fn, in_axes=(0, None))"
                )
                raise ValueError(message)
        return P(entry(data))

    return jax.tree.map(spec, in_axes, batch, is_leaf=lambda axis: axis is None)


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
