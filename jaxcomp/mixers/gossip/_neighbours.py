"""What workers send to their neighbours, and the frame of those who remember it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core import trees, types
from jaxcomp.core.coding.payloads import fuse, split
from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Axis, Info, Mixed, Payload, Spec, State, Tree
from jaxcomp.exchanges import figure_names, measure
from jaxcomp.mixers.gossip.topology import Round, Topology
from jaxcomp.mixers.initial_models import among_workers
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift
from jaxcomp.scope.contraction import leaf_contractions, refuse_growth

_FEW = 4  # neighbours whose messages are decoded together


class Gossiped(NamedTuple):
    """What `Neighbours.send` returns; trees in at least float32."""

    sent: Tree  # what this worker's message decodes to: D(q_i)
    pull: Tree  # sum_j w_ij (D(q_j) - D(q_i))
    state: State  # of the compressor
    info: Info


class Neighbours(NamedTuple):
    """What a worker needs in one step to send to its neighbours."""

    codec: types.Compressor  # of trees
    round: Round  # who sends to whom, and the weights
    axis: Axis  # of the workers
    key: Array  # of the step, the same on every worker
    spec: Spec  # shapes and dtypes of the trees that are sent

    def compress(self, tree: Tree, state: State) -> tuple[Payload, State]:
        """This worker's payload, with a key of its own; and the codec's new state."""
        own_key = jax.random.fold_in(self.key, collectives.index(self.axis))
        return self.codec.compress(tree, state, own_key)

    def send(self, tree: Tree, state: State) -> Gossiped:
        """Compress a tree, send it to the neighbours, and weigh what they sent.

        Args:
          tree: of this worker; it is cast to the dtypes of `spec`.
          state: of the codec.
        """
        given = trees.cast_like(tree, self.spec)
        payload, state = self.compress(given, state)
        sent = self.codec.decompress(payload, wide_spec(self.spec))
        pull = self.pull(fuse(payload), spec_of(payload), sent)
        info = measure(given, trees.cast_like(sent, self.spec), self.codec, payload)
        return Gossiped(sent, pull, state, info)

    def pull(self, words: Array, payload_spec: Spec, sent: Tree) -> Tree:
        """sum_j w_ij (D(q_j) - D(q_i)) over the neighbours j, in at least float32.

        Each neighbour slot of the round is one permutation of one array, which carries
        the whole payload. Differences are summed, not the messages: then equal messages
        add exactly zero, although float32 weights need not sum to exactly 1.

        Args:
          words: this worker's fused message.
          payload_spec: of the message.
          sent: what it decodes to, in at least float32.
        """
        workers, nodes = collectives.size(self.axis), len(self.round.matrix)
        if workers != nodes:
            message = f"the graph has {nodes} nodes and the axis {workers} workers"
            raise SpecError(message)
        slots, pull = self.round.slots, zeros_like_spec(sent)
        if not slots:  # one worker
            return pull
        columns = jnp.asarray(np.stack([slot.weights for slot in slots]), jnp.float32)
        weights = columns[:, collectives.index(self.axis)]
        messages = collectives.permute_each(words, [s.pairs for s in slots], self.axis)

        def add(pull: Tree, weight: Array, words: Array) -> Tree:
            arrived = self.codec.decompress(split(words, payload_spec), sent)

            # A weight of 0 says that nothing arrived, and a message of zeros may decode
            # to a NaN.
            def term(p: Array, theirs: Array, mine: Array) -> Array:
                difference = weight.astype(mine.dtype) * (theirs - mine)
                return p + jnp.where(weight == 0, 0, difference)

            return jax.tree.map(term, pull, arrived, sent)

        if len(slots) <= _FEW:
            # One expression, which decodes and adds all messages in one pass.
            for weight, message in zip(weights, messages, strict=True):
                pull = add(pull, weight, message)
            return pull

        # A loop, so that only one neighbour's decoded model is in memory at a time.
        def body(pull: Tree, message: tuple[Array, Array]) -> tuple[Tree, None]:
            return add(pull, *message), None

        received = (weights, jnp.stack(messages))
        return jax.lax.scan(body, trees.vary_like(pull, (sent, received)), received)[0]


class Rounded(NamedTuple):
    """The state of a mixer whose models are narrower than float32."""

    inner: State
    lost: Tree  # what rounding took of the model, in at least float32


def keep_rounding(mixer: types.Mixer) -> types.Mixer:
    """Add to the next update what rounding took of this one, where models are narrow.

    Steps below half an ulp would be lost on some workers and not on others, and the
    mean of the models would go with the others.

    Args:
      mixer: one that reads params and updates as their sum alone.
    """

    def init(params: Tree) -> State:
        state, wide = mixer.init(params), wide_spec(params)
        if jax.tree.leaves(wide) == jax.tree.leaves(spec_of(params)):
            return state
        return Rounded(state, zeros_like_spec(wide))

    def mix(params: Tree, updates: Tree, state: State, key: Array, phase: int) -> Mixed:
        if not isinstance(state, Rounded):
            return mixer.mix(params, updates, state, key, phase)
        given = plus(widen(updates), state.lost)
        mixed = mixer.mix(params, given, state.inner, key, phase)
        before, spec = widen(params), spec_of(params)
        after = widen(trees.cast_like(plus(before, mixed.updates), spec))
        lost = plus(mixed.updates, plus(after, before, -1), -1)
        return mixed._replace(state=Rounded(mixed.state, lost))

    resize = (*mixer.resize, types.Resize(Rounded))
    return mixer._replace(init=init, mix=mix, resize=resize)


def plus(x: Tree, y: Tree, factor: float | Array = 1.0) -> Tree:
    """x + factor * y, leaf by leaf.

    Example:
      >>> float(plus(jnp.float32(1), jnp.float32(4), 0.5))
      3.0
    """
    return jax.tree.map(lambda a, b: a + jnp.asarray(factor, b.dtype) * b, x, y)


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
    resize: types.Resize,
    allow: bool,
) -> types.Mixer:
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
    return types.Mixer(title, init, mix, axis, figures=figures, resize=(resize,))


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
