"""Models with an axis of workers in front, on a mesh: a model for each worker."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Tree
from jaxcomp.sharded.cuts import OWN, entry, spec_of_model, spec_of_param
from jaxcomp.sharded.data_axes import workers_of
from jaxcomp.trees import label_of

__all__ = [
    "in_front",
    "of_one",
    "put",
    "specs_of",
    "spread",
    "with_axis",
    "without_axis",
]


def without_axis(tree: Tree) -> Tree:
    """A device's slice of each array, without the axis of workers in front."""
    return jax.tree.map(lambda x: x[0], tree)


def with_axis(tree: Tree) -> Tree:
    """The inverse of `without_axis`."""
    return jax.tree.map(lambda x: x[None], tree)


def in_front(models: Tree, specs: tuple[P, ...], data: tuple[str, ...]) -> Tree:
    """How models are cut, from how each tensor of one of them is."""
    cuts = [P(entry(data), *spec) for spec in specs]
    return jax.tree.unflatten(jax.tree.structure(models), cuts)


def put(tree: Tree, specs: Tree, mesh: Mesh) -> Tree:
    """Arrays where they are to be."""
    return jax.device_put(tree, jax.tree.map(lambda s: NamedSharding(mesh, s), specs))


def spread(params: Tree, mesh: Mesh, data: tuple[str, ...]) -> Tree:
    """A copy of params for each worker, made where it is to be.

    Args:
      params: cut over any axes but those of the data.
      mesh: on which models are to live.
      data: the axes of the workers.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(params)
    specs = [spec_of_param(path, leaf, mesh, data, why=OWN) for path, leaf in pairs]
    of_params = jax.tree.unflatten(structure, specs)
    copied = jax.shard_map(
        with_axis,
        mesh=mesh,
        in_specs=(of_params,),
        out_specs=in_front(params, tuple(specs), data),
        check_vma=False,
    )
    return jax.jit(copied)(put(params, of_params, mesh))


def of_one(models: Tree, mesh: Mesh, data: tuple[str, ...]) -> Tree:
    """Shapes and types of one worker's model; refuses trees without their axis."""
    workers = workers_of(mesh, data)

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        if leaf.shape[:1] != (workers,):
            message = (
                f"{label_of(path)} has the shape {leaf.shape}, and models have an axis "
                f"of {workers} workers in front: begin with models = dec.spread(params)"
            )
            raise ValueError(message)
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree_util.tree_map_with_path(spec, models)


def specs_of(models: Tree, mesh: Mesh, data: tuple[str, ...]) -> tuple[P, ...]:
    """How each tensor of a worker's model is cut."""
    of_one(models, mesh, data)
    pairs, _ = jax.tree_util.tree_flatten_with_path(models)
    return tuple(spec_of_model(path, leaf, mesh, data) for path, leaf in pairs)
