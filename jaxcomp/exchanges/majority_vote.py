"""Majority vote: each element of the result is the sign that most workers have."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.segments import cut
from jaxcomp.core.coding.packing import PLANES, pack_planes, sign_symbols, unpack_planes
from jaxcomp.core.trees import cast_like, joint_dtype, spec_of, widen
from jaxcomp.core.types import Array, Averaged, Axis, Exchange, State, Tree
from jaxcomp.exchanges._common import gather_trees, measure, swap_rows
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan


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
        spec, count = spec_of(tree), collectives.size(axis)
        leaves, structure = jax.tree.flatten(widen(tree))
        sizes = [leaf.size for leaf in leaves]
        width = -(-sum(sizes) // (PLANES * count)) * PLANES
        # What completes the rows is joined with the leaves: padding would copy them.
        ends = jnp.zeros(width * count - sum(sizes), jnp.float32)
        rows = _joined([*leaves, ends]).reshape(count, width)

        # To each owner: signs, and whether all elements are finite.
        broken = jnp.broadcast_to(~_is_finite(rows), (count, 1))
        signs = pack_planes(sign_symbols(rows))
        votes, alarms = swap_rows((signs, broken.astype(jnp.uint8)), axis)
        total = jnp.sum(unpack_planes(votes).astype(jnp.int32), axis=0)
        winners = pack_planes(sign_symbols(total - np.int32(count)))
        winners, alarms = gather_trees((winners, jnp.max(alarms, axis=0)), axis)
        unit = jnp.where(jnp.max(alarms) > 0, jnp.nan, 1.0).astype(jnp.float32)

        def shaped(symbols: Array, like: Array) -> Array:
            signs = (symbols.astype(jnp.float32) - 1) * unit
            return signs.reshape(like.shape)

        # A loop, because XLA would otherwise unpack for each leaf, element by element.
        symbols = jax.lax.map(unpack_planes, winners).reshape(-1)
        parts = cut(symbols[: sum(sizes)], sizes)
        mean = jax.tree.unflatten(structure, list(map(shaped, parts, leaves)))
        sent = jax.tree.map(lambda x: shaped(sign_symbols(x), x), tree)
        info = measure(tree, sent)
        return Averaged(cast_like(mean, spec), cast_like(sent, spec), state, info)

    return Exchange(
        "majority_vote",
        init=lambda tree: (),
        average=average,
        axis=axis,
        lawful=False,
        ignores_compressor=True,
    )


def _joined(arrays: list[Array]) -> Array:
    dtype = joint_dtype([x.dtype for x in arrays])
    return jnp.concatenate([x.reshape(-1).astype(dtype) for x in arrays])


def _is_finite(x: Array) -> Array:
    """Whether all elements are finite, by a sum: a logical one does not vectorise.

    Example:
      >>> [_is_finite(jnp.full(9, x)).item() for x in (3e38, jnp.inf, jnp.nan)]
      [True, False, False]
    """
    # The square of the largest number, times 2^31, is still finite.
    power = jnp.finfo(x.dtype).maxexp // 2 + 16
    return jnp.isfinite(jnp.sum(jnp.square(x * np.array(2.0**-power, x.dtype))))
