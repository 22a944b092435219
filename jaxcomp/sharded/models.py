"""Models on a mesh: one for each worker, stacked along a leading axis."""

from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Tree
from jaxcomp.sharded import cuts
from jaxcomp.sharded.data_axes import workers_of
from jaxcomp.trees import label_of

__all__ = ["in_front", "of_one", "specs_of", "spread", "with_axis", "without_axis"]


def without_axis(tree: Tree) -> Tree:
    """A device's slice of each array, without the axis of workers in front."""
    return jax.tree.map(lambda x: x[0], tree)


def with_axis(tree: Tree) -> Tree:
    """The inverse of `without_axis`."""
    return jax.tree.map(lambda x: x[None], tree)


def in_front(models: Tree, specs: tuple[P, ...], data: tuple[str, ...]) -> Tree:
    """How models with a leading worker axis are cut, from how one model is."""
    of_models = [P(cuts.entry(data), *spec) for spec in specs]
    return jax.tree.unflatten(jax.tree.structure(models), of_models)


def spread(params: Tree, mesh: Mesh, data: tuple[str, ...]) -> Tree:
    """A copy of params for each worker, made on that worker's devices.

    Args:
      params: cut over any axes but those of the data.
      mesh: on which models are to live.
      data: the axes of the workers.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(params)
    specs = [cuts.spec_of_param(*pair, mesh, data, why=cuts.OWN) for pair in pairs]
    of_params = jax.tree.unflatten(structure, specs)
    of_models = in_front(params, tuple(specs), data)
    copied = cuts.on_devices(with_axis, mesh, (of_params,), of_models)
    return jax.jit(copied)(cuts.put(params, of_params, mesh))


def of_one(models: Tree, mesh: Mesh, data: tuple[str, ...]) -> Tree:
    """Shapes and dtypes of one worker's model; refuses trees without a worker axis."""
    workers = workers_of(mesh, data)

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        if leaf.shape[:1] != (workers,):
            raise ValueError(
                f"{label_of(path)} has the shape {leaf.shape}, and models have an axis "
                f"of {workers} workers in front: begin with models = dec.spread(params)"
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree_util.tree_map_with_path(spec, models)


def specs_of(models: Tree, mesh: Mesh, data: tuple[str, ...]) -> tuple[P, ...]:
    """How each tensor of a worker's model is cut."""
    of_one(models, mesh, data)
    pairs, _ = jax.tree_util.tree_flatten_with_path(models)
    return tuple(cuts.spec_of_model(path, leaf, mesh, data) for path, leaf in pairs)
