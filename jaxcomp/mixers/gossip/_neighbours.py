"""How a worker sends to its neighbours: one message to each, and their weighted sum."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.coding.message import fuse, split
from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import (
    cast_like,
    spec_of,
    vary_like,
    wide_spec,
    widen,
    zeros_like_spec,
)
from jaxcomp.core.types import (
    Array,
    Axis,
    Compressor,
    Info,
    Mixed,
    Mixer,
    Payload,
    Resize,
    Spec,
    State,
    Tree,
)
from jaxcomp.exchanges.step_info import measure
from jaxcomp.mixers.gossip.topology import Round
from jaxcomp.parallel import collectives

_FEW = 4  # neighbours whose messages are decoded together


class Gossiped(NamedTuple):
    """What `Neighbours.send` returns; trees in at least float32."""

    sent: Tree  # what this worker's message decodes to: D(q_i)
    pull: Tree  # sum_j w_ij (D(q_j) - D(q_i))
    state: State  # of the compressor
    info: Info


class Neighbours(NamedTuple):
    """What a worker needs in one step to send to its neighbours."""

    codec: Compressor  # of trees
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
        given = cast_like(tree, self.spec)
        payload, state = self.compress(given, state)
        sent = self.codec.decompress(payload, wide_spec(self.spec))
        pull = self.pull(fuse(payload), spec_of(payload), sent)
        info = measure(given, cast_like(sent, self.spec), self.codec, payload)
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
        return jax.lax.scan(body, vary_like(pull, (sent, received)), received)[0]


class Rounded(NamedTuple):
    """The state of a mixer whose models are narrower than float32."""

    inner: State
    lost: Tree  # what rounding took of the model, in at least float32


def keep_rounding(mixer: Mixer) -> Mixer:
    """Add to the next update what rounding took of this one, where models are narrow.

    Steps below half an ulp would be lost on some workers and not on others, and the
    mean of the models would go with the others.

    Args:
      mixer: one that reads params and updates as their sum alone.
    """

    def init(params: Tree) -> State:
        state, wide = mixer.init(params), wide_spec(params)
        leaves = zip(
            jax.tree.leaves(spec_of(params)), jax.tree.leaves(wide), strict=True
        )
        if all(leaf.dtype == widest.dtype for leaf, widest in leaves):
            return state
        return Rounded(state, zeros_like_spec(wide))

    def mix(params: Tree, updates: Tree, state: State, key: Array, phase: int) -> Mixed:
        if not isinstance(state, Rounded):
            return mixer.mix(params, updates, state, key, phase)
        given = plus(widen(updates), state.lost)
        mixed = mixer.mix(params, given, state.inner, key, phase)
        before, spec = widen(params), spec_of(params)
        after = widen(cast_like(plus(before, mixed.updates), spec))
        lost = plus(mixed.updates, plus(after, before, -1), -1)
        return mixed._replace(state=Rounded(mixed.state, lost))

    resize = (*mixer.resize, Resize(Rounded))
    return mixer._replace(init=init, mix=mix, resize=resize)


def plus(x: Tree, y: Tree, factor: float | Array = 1.0) -> Tree:
    """x + factor * y, leaf by leaf.

    Example:
      >>> float(plus(jnp.float32(1), jnp.float32(4), 0.5))
      3.0
    """
    return jax.tree.map(lambda a, b: a + jnp.asarray(factor, b.dtype) * b, x, y)
