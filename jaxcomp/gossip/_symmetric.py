"""The frame of algorithms that keep estimates of their neighbours' models.

Such estimates are sums of messages, so the neighbours have to stay the same, and each
two of them have to weigh each other alike.
"""

from collections.abc import Callable
from typing import Any

from jaxcomp.base import Array, Axis, Mixed, Mixer, Resize, Tree
from jaxcomp.bounds import leaf_contractions, refuse_growth
from jaxcomp.gossip._neighbours import Neighbours
from jaxcomp.gossip.topology import Round, Topology
from jaxcomp.infos import figure_names
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import SpecError
from jaxcomp.trees import spec_of, widen

__all__ = ["symmetric_mixer"]


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
