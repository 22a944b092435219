"""Majority vote: a sign to the owner of a place, and a sign back."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxcomp import collectives
from jaxcomp.base import Array, Averaged, Axis, Exchange, State, Tree
from jaxcomp.coding.message import fuse, split
from jaxcomp.coding.packing import pack_signs, unpack_signs
from jaxcomp.infos import measure
from jaxcomp.scope import Plan
from jaxcomp.trees import cast_like, spec_of, vary_like, wide_spec

__all__ = ["majority_vote"]

# Signs fill bytes by fives; an even number of bytes is packed faster.
_PIECE = 10


def majority_vote(plan: Plan, axis: Axis) -> Exchange:
    """sgn(sum_i sgn(g_i)), the sign that most workers have: not a mean.

    Worker j owns the j-th part of the tree, laid out as one vector. It adds the signs
    that arrive (all-to-all) and sends the sign of the sum (all-gather): twice 1.6 bits
    an element, whatever N is. sgn(0) = 0: a worker abstains where its element is zero,
    and a tie moves nothing, so that frozen parameters stay put. A NaN or an infinity
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
        count = collectives.size(axis)
        width = -(-vector.size // (_PIECE * count)) * _PIECE
        padded = jnp.pad(vector, (0, width * count - vector.size))

        # What each owner is told: signs, and whether all is well.
        broken = jnp.broadcast_to(~jnp.all(jnp.isfinite(vector)), (count, 1))
        signs = jax.vmap(pack_signs)(padded.reshape(count, width))
        ballot = (signs, broken.astype(jnp.uint8))
        one: Any = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), ballot
        )
        arrived = collectives.swap(jax.vmap(fuse)(ballot), axis)
        votes, alarms = jax.vmap(lambda words: split(words, one))(arrived)

        def add(i: Array, balance: Array) -> Array:
            return balance + unpack_signs(votes[i], width)

        even = vary_like(jnp.zeros(width, jnp.float32), votes)
        balance = jax.lax.fori_loop(0, count, add, even)
        answer = (pack_signs(balance), jnp.max(alarms, axis=0))

        messages = collectives.gather(fuse(answer), axis)
        winners, alarms = jax.vmap(lambda words: split(words, one))(messages)
        unit = jnp.where(jnp.max(alarms) > 0, jnp.nan, 1.0).astype(vector.dtype)

        def decoded(rows: Array) -> Tree:
            signs = jax.vmap(lambda row: unpack_signs(row, width))(rows)
            signs = signs.reshape(-1)[: vector.size].astype(vector.dtype)
            return cast_like(to_tree(signs * unit), spec)

        mean, sent = decoded(winners), decoded(signs)
        return Averaged(mean, sent, state, measure(tree, sent))

    return Exchange(
        "majority_vote",
        init=lambda tree: (),
        average=average,
        axis=axis,
        lawful=False,
        ignores_compressor=True,
    )
