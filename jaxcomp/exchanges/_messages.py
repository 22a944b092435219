"""Trees that cross workers as one fused array each."""

import jax

from jaxcomp import collectives
from jaxcomp.base import Axis, Spec, Tree
from jaxcomp.coding.message import fuse, split
from jaxcomp.trees import spec_of

__all__ = ["gather_trees", "row_spec", "swap_rows"]


def gather_trees(tree: Tree, axis: Axis, alike: bool = False) -> Tree:
    """Every worker's tree, stacked in the order of the workers, by one all-gather.

    Args:
      tree: of this worker.
      axis: the mapped axis, or a part of it.
      alike: as in `collectives.gather`.
    """
    messages = collectives.gather(fuse(tree), axis, alike)
    return jax.vmap(lambda words: split(words, spec_of(tree)))(messages)


def swap_rows(tree: Tree, axis: Axis) -> Tree:
    """Send row j of each leaf to worker j, by one all-to-all.

    Args:
      tree: leaves [N, ...], with a row for each worker.
      axis: the mapped axis.

    Returns:
      Leaves [N, ...]: row i is what worker i sent to this one.
    """
    received = collectives.swap(jax.vmap(fuse)(tree), axis)
    return jax.vmap(lambda words: split(words, row_spec(tree)))(received)


def row_spec(tree: Tree) -> Spec:
    """Shapes and dtypes of one row of each leaf."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)
