"""What workers have to know of each other's starts, learnt once, by `init`.

Messages tell how a model changed, and not where it began. `init` runs outside the axis
of the workers as a rule, where nobody can be asked:

- for one worker, whose state is copied: then all start alike, and nothing is missing;
- under `vmap`, over the workers' models: these are all there;
- under the axis itself, and then workers can ask.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import collectives
from jaxcomp.base import Array, Axis, Tree
from jaxcomp.trees import widen

__all__ = ["among_workers", "mean_start"]


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

    # Of differences to one of them: workers that agree are not moved by rounding.
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
    """What a worker learns by asking, or what holds where all are like this one.

    Args:
      asked: runs under the axis; the result has the shapes of the tree.
      alike: the result of `asked` if all workers have this tree.
      tree: of this worker; both are given it in at least float32.
      workers: their number, by which a mapped axis without a name is known for theirs;
        None: not known, so that they are seen under an axis of their name alone.
      axis: of the workers.
    """
    tree = widen(tree)
    try:
        collectives.size(axis)
    except NameError:
        pass
    else:
        return asked(tree)

    @jax.custom_batching.custom_vmap
    def learnt(tree: Tree) -> Tree:
        return alike(tree)

    @learnt.def_vmap
    def _(size: int, batched: Any, tree: Tree) -> tuple[Tree, Any]:
        [in_tree] = batched
        rows = jax.tree.map(
            lambda x, differs: x if differs else jnp.broadcast_to(x, (size, *x.shape)),
            tree,
            in_tree,
        )
        if size == workers:
            result = jax.vmap(asked, axis_name=axis)(rows)
        else:  # members of an ensemble: one more dimension of everybody's model
            result = _moved(learnt(_moved(rows, 0, -1)), -1, 0)
        return result, jax.tree.map(lambda x: True, tree)

    return learnt(tree)


def _moved(tree: Tree, source: int, destination: int) -> Tree:
    def move(x: Array) -> Array:
        return jnp.moveaxis(x, source, destination)

    return jax.tree.map(move, tree)
