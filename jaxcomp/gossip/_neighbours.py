"""What all gossip has in common: one fused message to each neighbour, weighed pulls."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import collectives
from jaxcomp.base import Array, Compressor, Info, Spec, State, Tree
from jaxcomp.bounds import leaf_contractions, refuse_growth
from jaxcomp.coding.message import fuse, split
from jaxcomp.gossip.topology import Round, Topology
from jaxcomp.infos import measure
from jaxcomp.scope import Plan
from jaxcomp.specs import SpecError
from jaxcomp.trees import cast_like, spec_of, vary_like, wide_spec, zeros_like_spec

__all__ = [
    "Gossiped",
    "check_contraction",
    "plus",
    "pull_of_neighbours",
    "send_compressed",
    "symmetric_round",
]


class Gossiped(NamedTuple):
    """What `send_compressed` returns; trees in at least float32."""

    sent: Tree  # what this worker's message decodes to: D(q_i)
    pull: Tree  # sum_j w_ij (D(q_j) - D(q_i))
    state: State  # of the compressor
    info: Info


def send_compressed(
    codec: Compressor, tree: Tree, state: State, key: Array, graph: Round, axis: str
) -> Gossiped:
    """Compress a tree, send it to the neighbours, and weigh what they sent.

    One permutation for each neighbour slot of the round, each of which carries the
    whole payload in one array.

    Args:
      codec: compressor of trees.
      tree: of this worker, in the dtypes that are to be sent.
      state: of the codec.
      key: the same on every worker.
      graph: who hears whom, and with which weights.
      axis: the mapped axis.
    """
    own_key = jax.random.fold_in(key, collectives.index(axis))
    payload, state = codec.compress(tree, state, own_key)
    sent = codec.decompress(payload, wide_spec(spec_of(tree)))
    pull = pull_of_neighbours(codec, fuse(payload), spec_of(payload), sent, graph, axis)
    info = measure(tree, cast_like(sent, spec_of(tree)), codec, payload)
    return Gossiped(sent, pull, state, info)


def pull_of_neighbours(
    codec: Compressor,
    words: Array,
    payload_spec: Spec,
    sent: Tree,
    graph: Round,
    axis: str,
) -> Tree:
    """sum_j w_ij (D(q_j) - D(q_i)) over the neighbours, in at least float32.

    Of differences, so that neighbours who say the same pull by exactly nothing: weights
    of float32 need not sum to 1, and what is missing would move the mean.

    Args:
      codec: compressor of trees.
      words: this worker's fused message.
      payload_spec: of the message.
      sent: what it decodes to, in at least float32.
      graph: who hears whom.
      axis: the mapped axis.
    """
    _check_workers(graph, axis)
    nothing = zeros_like_spec(sent)
    if not graph.slots:  # one worker
        return nothing
    place = collectives.index(axis)
    columns = np.stack([slot.weights for slot in graph.slots])
    weights = jnp.asarray(columns, jnp.float32)[:, place]
    messages = [collectives.permute(words, slot.pairs, axis) for slot in graph.slots]

    def add(pull: Tree, message: tuple[Array, Array]) -> tuple[Tree, None]:
        weight, words = message
        arrived = codec.decompress(split(words, payload_spec), sent)

        # Nothing arrived where the weight is 0, and zeros need not decode to a number.
        def term(p: Array, theirs: Array, mine: Array) -> Array:
            difference = weight.astype(mine.dtype) * (theirs - mine)
            return p + jnp.where(weight == 0, 0, difference)

        return jax.tree.map(term, pull, arrived, sent), None

    # One after the other: no more than one neighbour's model is in memory.
    received = (weights, jnp.stack(messages))
    return jax.lax.scan(add, vary_like(nothing, (sent, received)), received)[0]


def check_contraction(plan: Plan, params: Tree, method: str) -> None:
    """Refuse messages that may lose more than there is, where that is sent again.

    Args:
      plan: of the compressor.
      params: of this worker.
      method: name of the mixer.
    """
    spec = spec_of(params)
    refuse_growth(
        leaf_contractions(plan, spec),
        spec,
        loser=plan.title,
        keeper=method,
        way_out=f"say {method}(allow=True), to try it all the same",
    )


def plus(x: Tree, y: Tree, factor: float | Array = 1.0) -> Tree:
    """x + factor * y, leaf by leaf.

    Example:
        >>> float(plus(jnp.float32(1), jnp.float32(4), 0.5))
        3.0
    """
    return jax.tree.map(lambda a, b: a + jnp.asarray(factor, b.dtype) * b, x, y)


def symmetric_round(graph: Topology, method: str) -> Round:
    """The one round of a graph in which all talk both ways, or an error."""
    first, *others = graph.rounds
    if others:
        reason = "remembers what neighbours said, so they have to stay the same"
        found = "changes with time"
    elif not graph.symmetric:
        reason = "needs neighbours that hear each other with one weight"
        found = "is not symmetric"
    else:
        return first
    raise SpecError(f"{method} {reason}, and {graph.name!r} {found}. d_psgd takes it")


def _check_workers(graph: Round, axis: str) -> None:
    workers, nodes = collectives.size(axis), len(graph.matrix)
    if workers != nodes:
        raise SpecError(f"the graph has {nodes} nodes and the axis {workers} workers")
