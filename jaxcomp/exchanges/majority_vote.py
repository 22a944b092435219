"""Majority vote: one bit to the owner of a place, and one bit back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxcomp import noise
from jaxcomp.base import (
    Array,
    Averaged,
    Axis,
    Exchange,
    State,
    Tree,
    cast_like,
    spec_of,
    wide_spec,
)
from jaxcomp.exchanges import collectives
from jaxcomp.exchanges.common import measure
from jaxcomp.payloads import fuse, pack, split, unpack
from jaxcomp.scope import Plan

__all__ = ["majority_vote"]


def majority_vote(plan: Plan, axis: Axis) -> Exchange:
    """The sign that most workers have, as -1 or 1: not a mean.

    Worker j owns the j-th part of the tree, laid out as one vector. It counts the signs
    that arrive (all-to-all) and sends the winners (all-gather): 2 bits an element,
    whatever N is. A tie is decided by a fair coin; sgn(0) = 1. A NaN or an infinity
    anywhere makes every worker's result NaN.

    It breaks the law, so no memory can keep what it loses; `local_momentum` may stand
    before it (signum). Each step has the length of the learning rate: take a small one,
    1e-3 or less. Whatever a minority of workers sends, it changes no sign on which all
    others agree.

    Args:
      plan: not used; signs need no scale, so that every tensor is treated alike.
      axis: the mapped axis.

    References:
      Bernstein et al., signSGD with Majority Vote is Communication Efficient and Fault
      Tolerant, arXiv:1810.05291, 2019.
    """

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec = spec_of(tree)
        vector, to_tree = ravel_pytree(cast_like(tree, wide_spec(spec)))
        count, place = collectives.size(axis), collectives.index(axis)
        width = -(-vector.size // (8 * count)) * 8
        padded = jnp.pad(vector, (0, width * count - vector.size))

        # What each owner is told: signs, and whether all is well.
        broken = jnp.broadcast_to(~jnp.all(jnp.isfinite(vector)), (count, 1))
        bits = jax.vmap(lambda row: pack(row < 0, bits=1))(padded.reshape(count, width))
        ballot = (bits, broken.astype(jnp.uint8))
        one: Any = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), ballot
        )
        arrived = collectives.swap(jax.vmap(fuse)(ballot), axis)
        votes, alarms = jax.vmap(lambda words: split(words, one))(arrived)

        def negatives(i: Array, sum_: Array) -> Array:
            return sum_ + unpack(votes[i], bits=1, size=width)

        against = jax.lax.fori_loop(0, count, negatives, jnp.zeros(width, jnp.uint32))
        seed = noise.seed_of(jax.random.fold_in(key, place))
        coin = noise.words(seed, width) >> np.uint32(31)
        lost = 2 * against + coin > np.uint32(count)
        answer = (pack(lost, bits=1), jnp.max(alarms, axis=0))

        messages = collectives.gather(fuse(answer), axis)
        winners, alarms = jax.vmap(lambda words: split(words, one))(messages)
        negative = jax.vmap(lambda row: unpack(row, bits=1, size=width))(winners)
        unit = jnp.where(jnp.max(alarms) > 0, jnp.nan, 1.0).astype(vector.dtype)
        signs = jnp.where(negative.reshape(-1)[: vector.size] == 1, -unit, unit)
        own = jnp.where(vector < 0, -unit, unit)
        mean, sent = (cast_like(to_tree(v), spec) for v in (signs, own))
        return Averaged(mean, sent, state, measure(tree, sent))

    return Exchange(
        "majority_vote",
        init=lambda tree: (),
        average=average,
        axis=axis,
        lawful=False,
    )
