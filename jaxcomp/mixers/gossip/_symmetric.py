"""The frame of algorithms whose workers remember what neighbours sent."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Axis, Mixed, Mixer, Resize, Tree
from jaxcomp.exchanges.step_info import figure_names
from jaxcomp.mixers.gossip._neighbours import Neighbours
from jaxcomp.mixers.gossip.topology import Round, Topology
from jaxcomp.mixers.initial_models import among_workers
from jaxcomp.scope import Plan, lift
from jaxcomp.scope.contraction import leaf_contractions, refuse_growth


def first_pull(params: Tree, graph: Topology, axis: Axis) -> Tree:
    """sum_j w_ij (x_j - x_i) of the starts in at least float32; 0 if they are equal.

    Args:
      params: where this worker starts.
      graph: of one round.
      axis: of the workers.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp.mixers.gossip.topology import topology
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
      >>> from jaxcomp.mixers.gossip.topology import topology
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


def symmetric_mixer(
    name: str,
    plan: Plan,
    graph: Topology,
    axis: Axis,
    start: Callable[[Tree], Any],
    step: Callable[[Tree, Tree, Any, Neighbours], Mixed],
    *,
    resize: Resize,
    allow: bool,
) -> Mixer:
    """A mixer on a graph that is symmetric and does not change.

    Args:
      name: of the method, with its arguments.
      plan: which tensors are compressed as one vector, and how.
      graph: who sends to whom.
      axis: the mapped axis.
      start: from the worker's first params to its state, a NamedTuple; its field
        `codec` is filled in here.
      step: (params, updates, state, neighbours) -> Mixed, params and updates in at
        least float32.
      resize: how the state goes on with another number of workers.
      allow: take a compressor without a contraction.
    """
    method = name.partition("(")[0]
    codec, neighbours = lift(plan), _only_round(graph, method)

    def init(params: Tree) -> Any:
        spec = spec_of(params)
        if not allow:
            refuse_growth(
                leaf_contractions(plan, spec),
                spec,
                loser=plan.title,
                keeper=method,
                way_out=f"say {method}(allow=True), to try it all the same",
            )
        return start(params)._replace(codec=codec.init(spec))

    def mix(params: Tree, updates: Tree, state: Any, key: Array, phase: int) -> Mixed:
        now = Neighbours(codec, neighbours, axis, key, spec_of(params))
        return step(widen(params), widen(updates), state, now)

    title = f"{name} on {graph.name}, {codec.name}"
    figures = figure_names(codec)
    return Mixer(title, init, mix, axis, figures=figures, resize=(resize,))


def _only_round(graph: Topology, method: str) -> Round:
    """The one round of a symmetric graph; refuses other graphs."""
    first, *others = graph.rounds
    if not others and graph.symmetric:
        return first
    if others:
        reason = "remembers what neighbours said, so they have to stay the same"
        found = "changes with time"
    else:
        reason = "needs neighbours that hear each other with one weight"
        found = "is not symmetric"
    raise SpecError(f"{method} {reason}, and {graph.name!r} {found}. d_psgd takes it")
