"""Rules of `jax.vmap` for functions of all workers.

A rule is called for any axis that vmap maps; the arrays that differ along it have it in
front. If it is the axis of the workers, the rule computes the results of all workers.
Any other axis, such as one of the members of an ensemble, is moved to the end of the
arrays, where it is one more dimension of each worker's arrays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Axis, Tree
from jaxcomp.border import axis_index

__all__ = ["moved", "stacked", "written_out"]


def stacked(tree: Tree, differs: Tree, count: int) -> Tree:
    """The arrays of all members of a mapped axis.

    Args:
      tree: as a rule is given it.
      differs: for each leaf, whether it already has a row for each member.
      count: number of members.
    """

    def rows(x: Array, has_rows: bool) -> Array:
        return x if has_rows else jnp.broadcast_to(x, (count, *x.shape))

    return jax.tree.map(rows, tree, differs)


def moved(tree: Tree, differs: Tree, source: int, destination: int) -> Tree:
    """The tree with one axis moved, in the leaves that have it.

    Args:
      tree: arrays.
      differs: for each leaf, whether it has the axis.
      source: place of the axis.
      destination: its new place.
    """

    def move(x: Array, has_axis: bool) -> Array:
        return jnp.moveaxis(x, source, destination) if has_axis else x

    return jax.tree.map(move, tree, differs)


def written_out(
    collective: Callable[[Tree], Tree],
    simulated: Callable[[Array], Array],
    tree: Tree,
    axis: Axis,
    alike: bool = False,
) -> Tree:
    """A collective that vmap does not have, with a function that computes it for vmap.

    Other axes may be mapped inside or around that of the workers, such as one of the
    members of an ensemble. Along these the collective runs for each member.

    Args:
      collective: treats each index of its arrays' last dimensions by itself.
      simulated: arrays of all workers, stacked, -> results of all workers, stacked.
      tree: of this worker.
      axis: name of the axis.
      alike: whether all workers have the same result; it is then returned once.
    """

    @jax.custom_batching.custom_vmap
    def run(tree: Tree, place: Array) -> Tree:
        return collective(tree)

    # vmap calls the rule for any axis, without its name. The place tells which axis it
    # is: it differs along that of the workers, and along no other.
    @run.def_vmap
    def _(size: int, batched: Any, tree: Tree, place: Array) -> tuple[Tree, Any]:
        in_tree, is_workers = batched
        if is_workers:
            results = jax.tree.map(simulated, stacked(tree, in_tree, size))
            return results, jax.tree.map(lambda x: not alike, tree)
        result = run(moved(tree, in_tree, 0, -1), place)
        return moved(result, in_tree, -1, 0), in_tree

    # All collectives here are linear. JAX's own rule for tangents would map them over
    # the wrong axis.
    linear = jax.custom_jvp(run)

    @linear.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Tree, Tree]:
        (tree, place), (change, _) = primals, tangents
        return run(tree, place), run(change, place)

    return linear(tree, axis_index(axis))
