"""Decentralised training under jit: a model for each worker, and a mixer of them.

Each worker's gradient and optimiser run in stages that are manual over the data axes
only, so that the compiler cuts a model over other axes as usual. The mixer runs in a
stage that is manual over all axes: each device mixes its shard with the same shard of
the neighbours.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh

from jaxcomp.base import Mixer, Tree
from jaxcomp.sharded.cuts import entry, put
from jaxcomp.sharded.data_axes import check_axes, each_worker, kinds_of, workers_of
from jaxcomp.sharded.data_parallel import Comm
from jaxcomp.sharded.links import of_workers
from jaxcomp.sharded.mixers import on_mesh
from jaxcomp.sharded.models import in_front, of_one, specs_of, spread

__all__ = ["ChainState", "Decentralised", "decentralised"]


class ChainState(NamedTuple):
    """State of `Decentralised.chain`, as global arrays."""

    own: Any  # of the links of each worker, with an axis of workers
    comm: Comm  # of the mixer


class Decentralised(NamedTuple):
    """Gossip and local training under jit; see `decentralised`."""

    spread: Callable[[Tree], Tree]  # (params) -> models, outside jit
    # (loss_fn, has_aux, in_axes) -> ((models, *batch) -> (value, grads))
    value_and_grad: Callable[..., Callable[..., tuple[Any, Tree]]]
    # The same for a function that returns (value, grads) of a worker.
    each: Callable[..., Callable[..., tuple[Any, Tree]]]
    # (*links) -> one link; its init is called outside jit
    chain: Callable[..., optax.GradientTransformationExtraArgs]


def decentralised(
    mixer: Mixer, mesh: Mesh, axis: str | Sequence[str] = "data", seed: int = 0
) -> Decentralised:
    """Train a model for each worker of a mesh, and mix them by a mixer, under jit.

    `spread(params)` copies a model for each worker. The result is a tree with a leading
    axis of workers, which is cut over the data axis of the mesh. Workers may also start
    with different models: any tree with that axis can be used.

    `value_and_grad(loss_fn)(models, *batch)` returns `(losses, grads)` of all workers:
    the loss gets one model and that worker's share of the batch. `in_axes` and
    `has_aux` are those of `data_parallel`. In addition, `in_axes` may be "own" for
    arrays with a leading axis of workers, such as statistics that the last step
    returned as aux; the loss gets its worker's entry, without that axis.
    `each(grad_fn)` does the same for a gradient function of your own.

    `chain(*links)` is like `optax.chain(*links, mixing(mixer))` under pmap: each worker
    runs the links on its own gradient and state, so that clipping sees its own norm,
    and then all models are mixed. It returns updates for `optax.apply_updates`. A bad
    gradient concerns its worker only. With `optax.apply_if_finite` around the links,
    that worker skips its update and goes on sending.

    Models may be cut over all axes of the mesh except those of the data. Each shard is
    mixed by itself, and only with the same shard of the neighbours. Tensors that are
    cut over the same axes share a message.

    Args:
      mixer: from `make_mixer(..., axis=axis)`.
      mesh: of models and batch.
      axis: of the mesh, over which a batch is divided; a tuple for several.
      seed: of all keys, as in `mixing`.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp.make import make_mixer
      >>> mesh = Mesh(jax.devices()[:1], "data")
      >>> alone = make_mixer("choco", "ring", 1, compressor="sign", axis="data")
      >>> dec = decentralised(alone, mesh)
      >>> tx = dec.chain(optax.clip_by_global_norm(2.5), optax.sgd(1.0))
      >>> models = dec.spread(jnp.zeros(2))
      >>> state = tx.init(models)
      >>> @jax.jit
      ... def step(models, state, x):
      ...     loss_fn = lambda w, x: jnp.mean(x @ w)
      ...     losses, grads = dec.value_and_grad(loss_fn)(models, x)
      ...     updates, state = tx.update(grads, state, models)
      ...     return optax.apply_updates(models, updates), state, losses
      >>> models, state, losses = step(models, state, jnp.array([[3.0, -4.0]]))
      >>> models.tolist(), losses.tolist()
      ([[-1.5, 2.0]], [0.0])
    """
    data = (axis,) if isinstance(axis, str) else tuple(axis)
    mixed = on_mesh(mixer, mesh, data, seed)
    check_axes(mixer.axis, mesh, data, "the mixer talks", "mixer")
    _check_workers(mixer, workers_of(mesh, data), data)

    def chain(
        *links: optax.GradientTransformation,
    ) -> optax.GradientTransformationExtraArgs:
        alone = of_workers(links, mesh, data)

        def init(params: Tree) -> Any:
            specs = specs_of(params, mesh, data)
            models = put(params, in_front(params, specs, data), mesh)
            return ChainState(alone.init(models, specs), mixed.init(models, specs))

        def update(
            updates: Tree, state: Any, params: Tree | None = None, **extra: Any
        ) -> tuple[Tree, Any]:
            if params is None:
                raise TypeError("update() needs the models: a mixer averages them")
            updates, after = alone.update(updates, state.own, params, extra)
            updates, comm = mixed.update(updates, state.comm, params)
            return updates, ChainState(after, comm)

        return optax.GradientTransformationExtraArgs(init, update)

    def each(
        grad_fn: Callable[..., Any], in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree]]:
        def call(models: Tree, *batch: Any) -> tuple[Any, Tree]:
            of_one(models, mesh, data)
            kinds = kinds_of(in_axes, batch, mesh, data, has_own=True)
            own = ["own"] * len(jax.tree.leaves(models))
            return each_worker(grad_fn, (models, *batch), own + kinds, mesh, data)

        return call

    def value_and_grad(
        loss_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree]]:
        return each(jax.value_and_grad(loss_fn, has_aux=has_aux), in_axes)

    spread_over = functools.partial(spread, mesh=mesh, data=data)
    return Decentralised(spread_over, value_and_grad, each, chain)


def _check_workers(mixer: Mixer, workers: int, data: tuple[str, ...]) -> None:
    """Refuse a graph that has not as many nodes as there are workers."""
    if mixer.workers not in (None, workers):
        raise ValueError(
            f"{mixer.name}: the graph has {mixer.workers} nodes, and {entry(data)!r} "
            f"has {workers} workers: build it by make_mixer(..., workers={workers})"
        )
