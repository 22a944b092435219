"""What several memories need: state in at least float32, and whom they refuse.

At most one memory gives a momentum, at most one behind it keeps what is not sent, and
what is not sent must not be more than what was given.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from jaxcomp.base import Exchange, PerWorker, State, Tree
from jaxcomp.bounds import refuse_growth
from jaxcomp.specs import Range, SpecError
from jaxcomp.trees import spec_of, wide_spec, zeros_like_spec

__all__ = [
    "BelowOne",
    "Factor",
    "check_contraction",
    "check_keeps",
    "check_momentum",
    "held_with",
    "kept_zeros",
]

Factor = Annotated[float, Range(least=0, most=1, says="a factor in [0, 1]")]
BelowOne = Annotated[float, Range(least=0, below=1, says="a factor in [0, 1)")]


def kept_zeros(tree: Tree) -> PerWorker:
    """Fresh state of each worker's own, in at least float32.

    A bfloat16 residual would swallow what is kept.
    """
    return PerWorker(zeros_like_spec(wide_spec(spec_of(tree))))


def check_keeps(exchange: Exchange) -> None:
    """Refuse an exchange under which what is kept would not be what was not sent."""
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


def check_momentum(exchange: Exchange) -> None:
    """Refuse a second momentum."""
    if exchange.momentum:
        message = (
            f"gives a momentum to what is sent, and so does {exchange.momentum!r} "
            "behind it. Take one of the two"
        )
        raise SpecError(message)


def check_contraction(exchange: Exchange, tree: Tree, keeper: str) -> None:
    """Refuse a loss that may be larger than what it is taken from.

    Args:
      exchange: what loses.
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


def held_with(
    exchange: Exchange, own: Callable[[State], Tree] | None = None
) -> Callable[[State], Tree] | None:
    """`held` of a memory: what it keeps itself and what the exchange keeps.

    Args:
      exchange: what the memory wraps; its state is the field `exchange`.
      own: from the memory's state to what it keeps.
    """
    inner = exchange.held
    if inner is None:
        return own
    if own is None:
        return lambda state: inner(state.exchange)
    return lambda state: jax.tree.map(jnp.add, own(state), inner(state.exchange))
