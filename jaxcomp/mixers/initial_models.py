"""What workers have to know of each other's first models, computed once by `init`.

Later messages say how a model changed, not where it began. `init` runs in one of three
ways:

- outside any mapped axis, for one worker, whose state is copied to all: then all
  workers start with the same model;
- under `vmap` over the workers' models, which are all there;
- under the axis of the workers: then it uses a collective.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.core.trees import widen
from jaxcomp.core.types import Axis, Tree
from jaxcomp.parallel import collectives
from jaxcomp.parallel.checks import is_mapped
from jaxcomp.parallel.collectives import moved, stacked


def mean_start(params: Tree, workers: int | None, axis: Axis) -> Tree:
    """The mean of all starts, the same on every worker, in at least float32.

    Args:
      params: where this worker starts.
      workers: as in `among_workers`.
      axis: of the workers.

    Example:
      >>> start = lambda x: mean_start(x, 2, "workers")
      >>> start(jnp.ones(1)).tolist(), jax.vmap(start)(jnp.array([1.0, 5.0])).tolist()
      ([1.0], [3.0, 3.0])
    """

    # The mean of differences to one of them, so that rounding moves no model where all
    # are equal.
    def asked(tree: Tree) -> Tree:
        is_first = collectives.index(axis) == 0
        given = jax.tree.map(lambda x: jnp.where(is_first, x, 0), tree)
        first = collectives.total(given, axis)
        apart = collectives.mean(jax.tree.map(jnp.subtract, tree, first), axis)
        return jax.tree.map(jnp.add, first, apart)

    return among_workers(asked, lambda tree: tree, params, workers, axis)


def among_workers(
    asked: Callable[[Tree], Tree],
    alike: Callable[[Tree], Tree],
    tree: Tree,
    workers: int | None,
    axis: Axis,
) -> Tree:
    """A function of all workers' trees, or its value where all trees are equal.

    Args:
      asked: the function, with collectives; the result has the shapes of the tree.
      alike: the result of `asked` if all workers have this tree.
      tree: of this worker; both functions get it in at least float32.
      workers: their number. A vmap without an axis name over so many trees is taken to
        be over the workers. With None, only a mapped axis of their name is.
      axis: of the workers.
    """
    tree = widen(tree)
    if is_mapped(collectives.whole(axis)):
        return asked(tree)

    @jax.custom_batching.custom_vmap
    def learnt(tree: Tree) -> Tree:
        return alike(tree)

    @learnt.def_vmap
    def _(size: int, batched: Any, tree: Tree) -> tuple[Tree, Any]:
        [in_tree] = batched
        rows, every = stacked(tree, in_tree, size), jax.tree.map(lambda x: True, tree)
        if size == workers:
            return jax.vmap(asked, axis_name=axis)(rows), every
        return moved(learnt(moved(rows, every, 0, -1)), every, -1, 0), every

    return learnt(tree)
