"""What all memories share: how one is made around an exchange, and what is refused.

At most one memory of an exchange adds momentum, and at most one keeps what was not
sent. A memory that keeps must stand behind the one that adds momentum, and what is not
sent must not be larger than what was given.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from jaxcomp.core.specs import Call, Pipe, Range, SpecError, build, parse
from jaxcomp.core.trees import cast_like, spec_of, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Averaged, Exchange, State, Tree
from jaxcomp.scope.contraction import refuse_growth

REGISTRY: dict[str, Callable[..., Exchange]] = {}  # filled by `jaxcomp.memory`
Factor = Annotated[float, Range(least=0, most=1, says="a factor in [0, 1]")]
_WAY_OUT = (
    "memory 'none', if this one is unbiased; or say allow=True in the memory, to try "
    "it all the same"
)
BelowOne = Annotated[float, Range(least=0, below=1, says="a factor in [0, 1)")]


def make(spec: str | Call | Pipe, exchange: Exchange) -> Exchange:
    """Wrap an exchange in the memory that the spec string names.

    Example:
      >>> from jaxcomp import exchanges
      >>> gather = exchanges.make("gather", "sign")
      >>> make("local_momentum(beta=0.9) | error_feedback", gather).name
      'local_momentum(beta=0.9): error_feedback: gather(sign)'
    """
    call = parse(spec) if isinstance(spec, str) else spec
    if isinstance(call, Pipe):
        return make(call.left, make(call.right, exchange))
    return build(call, REGISTRY, "memory", exchange)


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
    check_inner(exchange, keeps)

    def init(tree: Tree) -> State:
        zeros = zeros_like_spec(wide_spec(spec_of(tree)))
        state = start(zeros, exchange.init(zeros))
        if not allow:
            spec, deltas = spec_of(zeros), exchange.contraction(spec_of(zeros))
            refuse_growth(
                deltas, spec, loser=exchange.name, keeper=name, way_out=_WAY_OUT
            )
        return state

    def average_rounded(tree: Tree, state: State, key: Array) -> Averaged:
        step = average(widen(tree), state, key)
        info = step.info
        if keeps:
            info = info._replace(residual_norm=info.unsent_norm)
        return step._replace(mean=cast_like(step.mean, spec_of(tree)), info=info)

    def held_by_both(state: State) -> Tree:
        assert exchange.held is not None
        inner = exchange.held(state.exchange)
        return jax.tree.map(jnp.add, held(state), inner) if held else inner

    return exchange._replace(
        name=f"{name}: {exchange.name}",
        init=init,
        average=average_rounded,
        held=held_by_both if exchange.held else held,
        keeper=name if keeps else exchange.keeper,
        momentum=name if momentum else None,
        **facts,
    )


def check_inner(exchange: Exchange, keeps: bool) -> None:
    """Refuse an exchange that a memory, which keeps or adds momentum, cannot wrap."""
    message = ""
    if not keeps and exchange.momentum:
        message = (
            f"gives a momentum to what is sent, and so does {exchange.momentum!r} "
            "behind it. Take one of the two"
        )
    elif keeps and not exchange.lawful:
        message = (
            f"needs an exchange whose mean equals the mean of what is sent, which "
            f"{exchange.name!r} does not promise. Use memory 'none' or 'local_momentum'"
        )
    elif keeps and exchange.keeper:
        message = (
            f"keeps what is not sent, and so does {exchange.keeper!r} behind it: it "
            "would all be sent twice. Take one of the two"
        )
    elif keeps and exchange.momentum:
        message = (
            f"keeps what is not sent of what it is given, and {exchange.momentum!r} "
            "behind it sends something else, a momentum. Write that one first"
        )
    if message:
        raise SpecError(message)
