"""Majority vote: each element of the result is the sign that most workers have."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxcomp import collectives
from jaxcomp.base import Array, Averaged, Axis, Exchange, State, Tree
from jaxcomp.coding.packing import pack_signs, unpack_signs
from jaxcomp.exchanges._messages import gather_trees, swap_rows
from jaxcomp.infos import measure
from jaxcomp.scope import Plan
from jaxcomp.trees import cast_like, spec_of, vary_like, wide_spec

__all__ = ["majority_vote"]

# Signs fill bytes by fives; an even number of bytes is packed faster.
_PIECE = 10


def majority_vote(plan: Plan, axis: Axis) -> Exchange:
    """sgn(sum_i sgn(g_i)), the sign that most workers have. This is not a mean.

    Worker j owns the j-th part of the tree, laid out as one vector. It adds the signs
    that arrive (all-to-all) and sends the sign of the sum (all-gather): twice 1.6 bits
    for each element, whatever N is. sgn(0) = 0: a worker with a zero has no vote, and
    the result of a tie is 0, so frozen parameters stay as they are. A NaN or an
    infinity anywhere makes every worker's result NaN.

    The mean of what workers send is not the result, so no memory can keep what is lost;
    `local_momentum` may stand before it (signum). Every element of an update is as
    large as the learning rate: take a small one, 1e-3 or less. A minority of workers,
    whatever it sends, changes no sign on which all others agree.

    Args:
      plan: not used; signs need no scale, so all tensors are treated alike.
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

        # To each owner: signs, and whether all elements are finite.
        broken = jnp.broadcast_to(~jnp.all(jnp.isfinite(vector)), (count, 1))
        signs = jax.vmap(pack_signs)(padded.reshape(count, width))
        votes, alarms = swap_rows((signs, broken.astype(jnp.uint8)), axis)

        def add(i: Array, balance: Array) -> Array:
            return balance + unpack_signs(votes[i], width)

        even = vary_like(jnp.zeros(width, jnp.float32), votes)
        balance = jax.lax.fori_loop(0, count, add, even)
        answer = (pack_signs(balance), jnp.max(alarms, axis=0))
        winners, alarms = gather_trees(answer, axis)
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
