"""What neighbours have to know of each other's starts."""

from typing import Any

import jax

from jaxcomp.base import Axis, Tree
from jaxcomp.gossip._neighbours import send_compressed
from jaxcomp.gossip.topology import Topology
from jaxcomp.scope import lift
from jaxcomp.starts import among_workers
from jaxcomp.trees import zeros_like_spec

__all__ = ["first_pull"]


def first_pull(params: Tree, graph: Topology, axis: Axis) -> Tree:
    """sum_j w_ij (x_j - x_i) of the starts, in at least float32; 0 where all are alike.

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
        result = send_compressed(
            codec, tree, none, jax.random.key(0), graph.rounds[0], axis
        )
        return result.pull

    return among_workers(asked, zeros_like_spec, params, graph.size, axis)
