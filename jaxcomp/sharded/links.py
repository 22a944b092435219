"""A chain of optax links that each worker runs for its own model, on a mesh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Tree
from jaxcomp.sharded.cuts import entry
from jaxcomp.sharded.data_axes import workers_of

__all__ = ["Stage", "of_workers"]


class Stage(NamedTuple):
    """A part of a step of all workers, whose trees have an axis of workers."""

    init: Callable[[Tree, tuple[P, ...]], Any]  # (models, specs) -> state
    # (updates, state, models) -> (updates, state); links take extra arguments too
    update: Callable[..., tuple[Tree, Any]]


def of_workers(
    links: tuple[optax.GradientTransformation, ...], mesh: Mesh, data: tuple[str, ...]
) -> Stage:
    """A chain of links that each worker runs alone; all trees have a worker axis.

    It is manual over the data axes, so that only what a link sends crosses them. Inside
    it is mapped by vmap, which turns `lax.cond` of a link into a selection between both
    results. Otherwise some workers might wait in a collective over the axes of the
    model that others do not reach.

    Args:
      links: as for `optax.chain`.
      mesh: of the models.
      data: the axes of the workers.
    """
    tx = optax.with_extra_args_support(
        optax.chain(*links) if links else optax.identity()
    )

    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.shard_map(
            jax.vmap(function, axis_size=1),
            mesh=mesh,
            in_specs=P(entry(data)),
            out_specs=P(entry(data)),
            axis_names=set(data),
            check_vma=False,
        )

    def init(models: Tree, specs: tuple[P, ...]) -> Any:
        shapes = jax.eval_shape(mapped(tx.init), models)
        cuts = _cuts(shapes, models, specs, entry(data))
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), cuts)
        # The compiler cannot know how to shard zeros.
        return jax.jit(mapped(tx.init), out_shardings=shardings)(models)

    def update(
        updates: Tree, state: Any, models: Tree, extra: dict[str, Any]
    ) -> tuple[Tree, Any]:
        _check_extra(extra, workers_of(mesh, data))

        def of_worker(given: tuple[Any, ...]) -> tuple[Tree, Any]:
            updates, state, model, extra = given
            return tx.update(updates, state, model, **extra)

        return mapped(of_worker)((updates, state, models, extra))

    return Stage(init, update)


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
