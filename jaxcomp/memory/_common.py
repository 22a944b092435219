"""What all memories share: how they wrap an exchange, and which ones they refuse.

At most one memory of an exchange adds momentum, and at most one keeps what was not
sent. A memory that keeps must stand behind the one that adds momentum, and what is not
sent must not be larger than what was given.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from jaxcomp.core.specs import Range, SpecError
from jaxcomp.core.trees import cast_like, spec_of, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Averaged, Exchange, State, Tree
from jaxcomp.scope.contraction import refuse_growth

Factor = Annotated[float, Range(least=0, most=1, says="a factor in [0, 1]")]
BelowOne = Annotated[float, Range(least=0, below=1, says="a factor in [0, 1)")]


def wrapped(
    name: str,
    exchange: Exchange,
    start: Callable[[Tree, State], State],
    average: Callable[[Tree, Any, Array], Averaged],
    *,
    keeps: bool,
    momentum: bool = False,
    held: Callable[[Any], Tree] | None = None,
    allow: bool = True,
    **facts: Any,
) -> Exchange:
    """An exchange with a memory around it.

    The memory computes in at least float32: in bfloat16 a residual would lose what is
    small beside it. Only the mean is rounded to the dtype of the gradient.

    Args:
      name: the spec string of the memory.
      exchange: the exchange.
      start: (zeros, state of the exchange) -> state of the memory before the first
        step. Its field `exchange` has the state of the exchange.
      average: as in `Exchange`, of a gradient in at least float32.
      keeps: whether the memory keeps what was not sent; it otherwise adds momentum.
      momentum: whether what is sent has a momentum.
      held: state of the memory -> what it keeps and will send later.
      allow: accept an exchange that may lose more than it was given.
      **facts: other fields of `Exchange` that the memory changes.
    """
    check = _check_keeps if keeps else check_momentum
    check(exchange)

    def init(tree: Tree) -> State:
        zeros = zeros_like_spec(wide_spec(spec_of(tree)))
        state = start(zeros, exchange.init(zeros))
        if not allow:
            _check_contraction(exchange, zeros, name)
        return state

    def average_rounded(tree: Tree, state: State, key: Array) -> Averaged:
        step = average(widen(tree), state, key)
        info = step.info
        if keeps:
            info = info._replace(residual_norm=info.unsent_norm)
        return step._replace(mean=cast_like(step.mean, spec_of(tree)), info=info)

    return exchange._replace(
        name=f"{name}: {exchange.name}",
        init=init,
        average=average_rounded,
        held=_held_with(exchange, held),
        keeper=name if keeps else exchange.keeper,
        momentum=name if momentum else None,
        **facts,
    )


def check_momentum(exchange: Exchange) -> None:
    """Refuse an exchange that already adds momentum."""
    if exchange.momentum:
        message = (
            f"gives a momentum to what is sent, and so does {exchange.momentum!r} "
            "behind it. Take one of the two"
        )
        raise SpecError(message)


def _check_keeps(exchange: Exchange) -> None:
    """Refuse an exchange where given minus sent is not what still has to be sent."""
    if not exchange.lawful:
        message = (
            f"needs an exchange whose mean equals the mean of what is sent, which "
            f"{exchange.name!r} does not promise. Use memory 'none' or 'local_momentum'"
        )
        raise SpecError(message)
    if exchange.keeper:
        message = (
            f"keeps what is not sent, and so does {exchange.keeper!r} behind it: it "
            "would all be sent twice. Take one of the two"
        )
        raise SpecError(message)
    if exchange.momentum:
        message = (
            f"keeps what is not sent of what it is given, and {exchange.momentum!r} "
            "behind it sends something else, a momentum. Write that one first"
        )
        raise SpecError(message)


def _check_contraction(exchange: Exchange, tree: Tree, keeper: str) -> None:
    """Refuse an exchange that may lose more than it was given.

    Args:
      exchange: the exchange.
      tree: what it is given.
      keeper: name of the memory.
    """
    spec = spec_of(tree)
    refuse_growth(
        exchange.contraction(spec),
        spec,
        loser=exchange.name,
        keeper=keeper,
        way_out="memory 'none', if this one is unbiased; or say allow=True in the "
        "memory, to try it all the same",
    )


def _held_with(
    exchange: Exchange, kept: Callable[[State], Tree] | None
) -> Callable[[State], Tree] | None:
    """The field `held` of a memory: what it keeps plus what its exchange holds.

    Args:
      exchange: the exchange that the memory wraps.
      kept: state of the memory -> what it keeps itself.
    """
    inner = exchange.held
    if inner is None:
        return kept
    if kept is None:
        return lambda state: inner(state.exchange)
    return lambda state: jax.tree.map(jnp.add, kept(state), inner(state.exchange))
