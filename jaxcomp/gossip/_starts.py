"""What neighbours have to know of the models with which each of them starts."""

from typing import Any

import jax
import numpy as np

from jaxcomp.base import Axis, Tree
from jaxcomp.gossip._neighbours import Neighbours
from jaxcomp.gossip.topology import Topology
from jaxcomp.scope import lift
from jaxcomp.starts import among_workers
from jaxcomp.trees import spec_of, wide_spec, zeros_like_spec

__all__ = ["first_pull", "first_pulls"]


def first_pull(params: Tree, graph: Topology, axis: Axis) -> Tree:
    """sum_j w_ij (x_j - x_i) of the starts in at least float32; 0 if they are equal.

    Args:
      params: where this worker starts.
      graph: of one round.
      axis: of the workers.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp.gossip.topology import topology
      >>> pull = lambda x: first_pull(x, topology("complete", 2), "workers")
      >>> pull(jnp.ones(1)).tolist(), jax.vmap(pull)(jnp.array([1.0, 5.0])).tolist()
      ([0.0], [2.0, -2.0])
    """
    codec = lift("per_leaf", "none")

    def asked(tree: Tree) -> Tree:
        none: Any = codec.init(tree)
        key, spec = jax.random.key(0), spec_of(tree)
        neighbours = Neighbours(codec, graph.rounds[0], axis, key, spec)
        return neighbours.send(tree, none).pull

    return among_workers(asked, zeros_like_spec, params, graph.size, axis)


def first_pulls(models: Tree, graph: Topology) -> Tree:
    """`first_pull` of all workers on the host, after a change of their number.

    It is computed in float64. Equal models give exactly 0.

    Args:
      models: of all workers, with an axis of them in front.
      graph: of one round, for this number of workers.

    Example:
      >>> from jaxcomp.gossip.topology import topology
      >>> first_pulls(np.float32([[1], [5]]), topology("complete", 2)).tolist()
      [[2.0], [-2.0]]
    """
    matrix = graph.rounds[0].matrix

    def of_leaf(x: np.ndarray, wide: jax.ShapeDtypeStruct) -> np.ndarray:
        pulls = np.zeros(wide.shape, wide.dtype)
        for i, weights in enumerate(matrix):
            mine = x[i].astype(np.float64)
            others = [j for j in np.flatnonzero(weights) if j != i]
            pulls[i] = sum(
                weights[j] * (x[j].astype(np.float64) - mine) for j in others
            )
        return pulls

    rows = jax.tree.map(np.asarray, models)
    return jax.tree.map(of_leaf, rows, wide_spec(spec_of(rows)))
