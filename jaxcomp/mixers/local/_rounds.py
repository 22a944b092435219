"""Rounds of local training, the frame of all local-update methods."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core import types
from jaxcomp.core.specs import Range, SpecError
from jaxcomp.core.trees import cast_like, spec_of, widen
from jaxcomp.core.types import Exchange, Mixed, Mixer, Resize, State, Tree
from jaxcomp.exchanges import nothing_lost
from jaxcomp.mixers.initial_models import mean_start

# A mixer lists the phase of each step of a round.
Steps = Annotated[int, Range(least=1, most=2**16)]
# (mean difference, momentum) -> (step of the common model, momentum)
Outer = Callable[[Tree, Tree], tuple[Tree, Tree]]


class RoundState(NamedTuple):
    """State of `rounds`; each tuple has an entry for each fragment of the model."""

    anchors: tuple[Tree, ...]  # the common model at the end of the last round
    momenta: tuple[Tree, ...]  # of the outer optimiser
    exchanges: tuple[State, ...]


def rounds(
    exchange: Exchange,
    outer: Outer,
    h: int,
    fragments: int = 1,
    *,
    title: str,
    has_momentum: bool = False,
) -> Mixer:
    """Train alone for h steps, then move the common model by what all have learnt.

    d_i     = anchor - x_i
    anchor <- anchor - outer(mean of d)
    x_i    <- anchor

    With P fragments, each of them is synchronised once in h steps, at steps of its own.
    So messages are P times smaller and spread over the round.

    With another number of workers, models are averaged or copied. All workers have the
    same anchors and outer momenta, which stay. So the mean of the differences d stays.

    Args:
      exchange: averages the differences over the workers.
      outer: the outer optimiser.
      h: steps of a round.
      fragments: parts of the model, of about equal size.
      title: name of the method.
      has_momentum: whether `outer` has a state like the model.
    """
    schedule = _schedule(h, fragments)

    def init(params: Tree) -> RoundState:
        parts = _cut(mean_start(params, None, exchange.axis), fragments)
        zeros = tuple(jax.tree.map(jnp.zeros_like, part) for part in parts)
        return RoundState(
            anchors=parts,
            momenta=zeros if has_momentum else ((),) * fragments,
            exchanges=tuple(exchange.init(p) for p in _cut(params, fragments)),
        )

    def mix(
        params: Tree, updates: Tree, state: RoundState, key: types.Array, phase: int
    ) -> Mixed:
        later = types.ticked(state)  # clocks of all fragments go on
        updates = widen(updates)
        if phase == 0:
            silence = nothing_lost(exchange.figures)._replace(sends=np.False_)
            return Mixed(updates, later, silence)
        i = phase - 1
        spec = _cut(spec_of(params), fragments)[i]
        before = _cut(widen(params), fragments)[i]
        half = jax.tree.map(jnp.add, before, _cut(updates, fragments)[i])
        # A model begins its round as the anchor in its own dtype.
        began = widen(cast_like(state.anchors[i], spec))
        learnt = cast_like(jax.tree.map(jnp.subtract, began, half), spec)
        result = exchange.average(learnt, state.exchanges[i], key)
        step, momentum = outer(widen(result.mean), state.momenta[i])
        anchor = jax.tree.map(jnp.subtract, state.anchors[i], step)
        changes = jax.tree.map(jnp.subtract, anchor, before)
        # Each field with its entry for this fragment replaced.
        pairs = zip(later, (anchor, momentum, result.state), strict=True)
        new = RoundState(*((*old[:i], now, *old[i + 1 :]) for old, now in pairs))
        # A part has None for the leaves of others.
        updates = jax.tree.map(lambda x, c: x if c is None else c, updates, changes)
        return Mixed(updates, new, result.info)

    name, axis, figures = f"{title}, {exchange.name}", exchange.axis, exchange.figures
    return Mixer(
        name,
        init,
        mix,
        axis,
        schedule,
        figures,
        simulated=exchange.simulated,
        resize=(Resize(RoundState), *_of_exchange(exchange)),
        patterns=exchange.patterns,
        silent=(0,),
        per_host=exchange.per_host,
    )


def _schedule(h: int, fragments: int) -> tuple[int, ...]:
    """The phase of each step of a round: 0, or 1 + the fragment that is sent."""
    if fragments > h:
        message = f"{fragments} fragments need as many steps, and a round has h={h}"
        raise SpecError(message)
    ends = [(i + 1) * h // fragments - 1 for i in range(fragments)]
    return tuple(1 + ends.index(i) if i in ends else 0 for i in range(h))


def scaled_mean(rate: float) -> Outer:
    """Gradient descent without momentum: step = rate d."""
    return lambda mean, state: (jax.tree.map(lambda d: rate * d, mean), state)


def nesterov(rate: float, momentum: float) -> Outer:
    """Nesterov momentum m: b <- m b + d, step = rate (d + m b)."""

    def outer(mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        buffer = jax.tree.map(lambda b, d: momentum * b + d, state, mean)
        step = jax.tree.map(lambda b, d: rate * (d + momentum * b), buffer, mean)
        return step, buffer

    return outer


def _of_exchange(exchange: Exchange) -> tuple[Resize, ...]:
    """The exchange's rules for another number of workers, where each has a model."""

    def of_one(rule: Resize) -> Resize:
        rebuild = rule.rebuild
        if rebuild is None:
            return rule

        def of_first(state: Any, params: Tree, workers: int) -> Any:
            return rebuild(state, jax.tree.map(lambda x: x[0], params), workers)

        return rule._replace(rebuild=of_first)

    return tuple(map(of_one, exchange.resize))


def _cut(tree: Tree, fragments: int) -> tuple[Tree, ...]:
    """Divide a tree into parts of about equal size.

    Each part has None for the leaves of the others, so that leaves keep their paths,
    which a policy may ask for.

    Example:
      >>> _cut({"a": jnp.zeros(2), "b": jnp.ones(2)}, 2)[1]
      {'a': None, 'b': Array([1., 1.], dtype=float32)}
    """
    leaves, structure = jax.tree.flatten(tree)
    total, done = sum(x.size for x in leaves), 0
    parts: list[list[Any]] = [[None] * len(leaves) for _ in range(fragments)]
    for place, leaf in enumerate(leaves):
        # The part in which the middle of the leaf lies.
        middle = (done + leaf.size / 2) / max(total, 1)
        parts[min(int(middle * fragments), fragments - 1)][place] = leaf
        done += leaf.size
    return tuple(jax.tree.unflatten(structure, part) for part in parts)
