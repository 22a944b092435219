"""A model for each worker under jit, mixed shard by shard."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.core.trees import label_of
from jaxcomp.core.types import Mixer, PerWorker, State, Tree
from jaxcomp.parallel.checks import check_patterns
from jaxcomp.transforms.distributed import mixing
from jaxcomp.transforms.jit import layout as laid
from jaxcomp.transforms.jit.data_parallel import Comm
from jaxcomp.transforms.jit.layout import Grid, Layout, in_front


class MixingStage(NamedTuple):
    """A part of a step of all workers, whose trees have an axis of workers."""

    init: Callable[[Tree, tuple[P, ...]], Any]  # (models, specs) -> state
    # (updates, state, models) -> (updates, state); links take extra arguments too
    update: Callable[..., tuple[Tree, Any]]


def of_workers(
    links: tuple[optax.GradientTransformation, ...], grid: Grid
) -> MixingStage:
    """A chain of links that each worker runs alone; all trees have a worker axis.

    It is manual over the data axes, so that only what a link sends crosses them. Inside
    it is mapped by vmap, which turns `lax.cond` of a link into a selection between both
    results. Otherwise some workers might wait in a collective over the axes of the
    model that others do not reach.

    Args:
      links: as for `optax.chain`.
      grid: of the models.
    """
    tx = optax.with_extra_args_support(
        optax.chain(*links) if links else optax.identity()
    )

    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        of_one, cut = jax.vmap(function, axis_size=1), P(grid.over)
        return grid.manual(of_one, cut, cut, only_data=True)

    def init(models: Tree, specs: tuple[P, ...]) -> Any:
        shapes = jax.eval_shape(mapped(tx.init), models)
        cuts = _cuts(shapes, models, specs, grid.over)
        shardings = jax.tree.map(lambda cut: NamedSharding(grid.mesh, cut), cuts)
        # The compiler cannot know how to shard zeros.
        return jax.jit(mapped(tx.init), out_shardings=shardings)(models)

    def update(
        updates: Tree, state: Any, models: Tree, extra: dict[str, Any]
    ) -> tuple[Tree, Any]:
        _check_extra(extra, grid.workers)

        def of_worker(given: tuple[Any, ...]) -> tuple[Tree, Any]:
            updates, state, model, extra = given
            return tx.update(updates, state, model, **extra)

        return mapped(of_worker)((updates, state, models, extra))

    return MixingStage(init, update)


def _cuts(state: Tree, models: Tree, specs: tuple[P, ...], data: Any) -> Tree:
    """How each leaf of a state is cut.

    A leaf whose path ends in that of a tensor, and which has its shape, is cut like the
    tensor; a momentum is an example. All other leaves are small, and each device of a
    worker holds all of them.
    """

    def names_of(path: Any) -> tuple[str, ...]:
        return tuple(map(str, path))

    pairs, _ = jax.tree_util.tree_flatten_with_path(models)
    known = {
        (names_of(path), leaf.shape): P(data, *spec)
        for (path, leaf), spec in zip(pairs, specs, strict=True)
    }

    def cut(path: Any, leaf: Any) -> P:
        names = names_of(path)
        ends = [(names[i:], leaf.shape) for i in range(len(names) + 1)]
        return next((known[end] for end in ends if end in known), P(data))

    return jax.tree_util.tree_map_with_path(cut, state)


def _check_extra(extra: dict[str, Any], workers: int) -> None:
    """Refuse arguments of update that have no axis of workers in front."""
    for name, value in extra.items():
        for shape in map(np.shape, jax.tree.leaves(value)):
            if shape[:1] != (workers,):
                raise ValueError(
                    f"{name}= of update has the shape {shape}: it has an axis of "
                    f"{workers} workers in front, as the losses of value_and_grad have"
                )


def mixed_on(mixer: Mixer, grid: Grid, seed: int) -> MixingStage:
    """`mixing` for models that have an axis of workers in front.

    Args:
      mixer: over the axes of the data.
      grid: of the models.
      seed: of all keys.
    """
    # Without a seed: keys are passed to `update`.
    link = mixing(mixer._replace(patterns=()))

    def planned(models: Tree, specs: tuple[P, ...]) -> list[Layout]:
        def own_state(params: Tree) -> PerWorker:
            return PerWorker(link.init(params))

        plan = laid.layouts(own_state, _of_one(models, grid), specs, grid)
        shared = laid.with_shared_clocks
        return [x._replace(cuts=shared(x.cuts.value)) for x in plan]

    def init(models: Tree, specs: tuple[P, ...]) -> Comm:
        check_patterns(mixer.patterns, models)

        # It runs under the axis, where workers can ask for each other's first models.
        def of_part(models: Tree) -> State:
            return link.init(laid.without_axis(models))

        plan, of_models = planned(models, specs), in_front(models, specs, grid)
        return Comm(laid.first_states(of_part, plan, models, of_models, grid), specs)

    def update(updates: Tree, comm: Comm, models: Tree) -> tuple[Tree, Comm]:
        plan = planned(models, comm.specs)
        structure = jax.tree.structure(models)

        def on_device(
            updates: Tree, models: Tree, links: tuple[State, ...]
        ) -> tuple[Tree, tuple[State, ...]]:
            given, params = laid.without_axis((updates, models))

            def of_part(layout: Layout, state: Any, key: Any) -> tuple[Tree, State]:
                parts = layout.part(given), state, layout.part(params)
                return link.update(*parts, key=key)

            whole, after = laid.in_parts(plan, links, seed, structure, of_part)
            return laid.with_axis(whole), after

        of_models = in_front(models, comm.specs, grid)
        of_links = tuple(x.specs for x in plan)
        specs = (of_models, of_models, of_links), (of_models, of_links)
        updates, links = grid.manual(on_device, *specs)(updates, models, comm.links)
        return updates, Comm(links, comm.specs)

    return MixingStage(init, update)


class ChainState(NamedTuple):
    """State of `Decentralised.chain`, as global arrays."""

    own: Any  # of the links of each worker, with an axis of workers
    comm: Comm  # of the mixer


class Decentralised(NamedTuple):
    """Gossip and local training under jit; made by `decentralised`.

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
    """

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

    Args:
      mixer: from `make_mixer(..., axis=axis)`.
      mesh: of models and batch.
      axis: of the mesh, over which a batch is divided; a tuple for several.
      seed: of all keys, as in `mixing`.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp.transforms.make_mixer import make_mixer
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
    grid = laid.make_grid(mesh, axis, mixer)
    mixed = mixed_on(mixer, grid, seed)
    if mixer.workers not in (None, grid.workers):
        raise ValueError(
            f"{mixer.name}: the graph has {mixer.workers} nodes, and {grid.over!r} has "
            f"{grid.workers} workers: build it by make_mixer(..., "
            f"workers={grid.workers})"
        )

    def chain(
        *links: optax.GradientTransformation,
    ) -> optax.GradientTransformationExtraArgs:
        own = of_workers(links, grid)

        def init(params: Tree) -> Any:
            _of_one(params, grid)
            pairs, _ = jax.tree_util.tree_flatten_with_path(params)
            specs = tuple(_spec_of_model(*pair, grid) for pair in pairs)
            models = grid.put(params, in_front(params, specs, grid))
            return ChainState(own.init(models, specs), mixed.init(models, specs))

        def update(
            updates: Tree, state: Any, params: Tree | None = None, **extra: Any
        ) -> tuple[Tree, Any]:
            if params is None:
                raise TypeError("update() needs the models: a mixer averages them")
            updates, after = own.update(updates, state.own, params, extra)
            updates, comm = mixed.update(updates, state.comm, params)
            return updates, ChainState(after, comm)

        return optax.GradientTransformationExtraArgs(init, update)

    def each(
        grad_fn: Callable[..., Any], in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree]]:
        def call(models: Tree, *batch: Any) -> tuple[Any, Tree]:
            _of_one(models, grid)
            kinds = laid.kinds_of(in_axes, batch, grid.workers, has_own=True)
            own = ["own"] * len(jax.tree.leaves(models))
            return laid.each_worker(grad_fn, (models, *batch), own + kinds, grid)

        return call

    def value_and_grad(
        loss_fn: Callable[..., Any], has_aux: bool = False, in_axes: Any = 0
    ) -> Callable[..., tuple[Any, Tree]]:
        return each(jax.value_and_grad(loss_fn, has_aux=has_aux), in_axes)

    spread = functools.partial(_spread, grid=grid)
    return Decentralised(spread, value_and_grad, each, chain)


OWN = "Each worker trains a model of its own, and has to hold all of it"


def _spec_of_model(path: Any, leaf: Any, grid: Grid) -> P:
    """How each worker's tensor is cut, read from an array with a leading worker axis.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as not cut.
      grid: of the models.
    """
    first, *rest = laid.spec_of_leaf(path, leaf, grid.mesh) or P(None)
    wrong = {*laid.axes_of(P(first), grid.mesh)} - {*grid.data}
    wrong |= {*laid.axes_of(P(*rest), grid.mesh)} & {*grid.data}
    if wrong:
        raise ValueError(
            f"{label_of(path)} is cut by {P(first, *rest)}. The first axis is that of "
            f"the workers, and cut over {grid.over!r} or not at all. {OWN}: cut it "
            "over other axes"
        )
    return P(*rest)


def _spread(params: Tree, grid: Grid) -> Tree:
    """A copy of params for each worker, made on that worker's devices.

    Args:
      params: cut over any axes but those of the data.
      grid: on which models are to live.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(params)
    specs = [laid.spec_of_param(*pair, grid, why=OWN) for pair in pairs]
    of_params = jax.tree.unflatten(structure, specs)
    of_models = in_front(params, specs, grid)
    copied = grid.manual(laid.with_axis, (of_params,), of_models)
    return jax.jit(copied)(grid.put(params, of_params))


def _of_one(models: Tree, grid: Grid) -> Tree:
    """Shapes and dtypes of one worker's model; refuses trees without a worker axis."""

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        if leaf.shape[:1] != (grid.workers,):
            raise ValueError(
                f"{label_of(path)} has the shape {leaf.shape}, and models have an axis "
                f"of {grid.workers} workers in front: begin with models = "
                "dec.spread(params)"
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree_util.tree_map_with_path(spec, models)
