"""From spec strings to an exchange of gradients, with its memory."""

from collections.abc import Sequence

from jaxcomp import compressors, exchanges, memory
from jaxcomp.compressors import make as make_compressor
from jaxcomp.core.specs import Call, Pipe, SpecError, publish
from jaxcomp.core.types import Axis, Compressor, Exchange, Tree
from jaxcomp.exchanges.overlap import overlapped
from jaxcomp.memory import make as make_memory
from jaxcomp.scope import REGISTRY as SCOPES
from jaxcomp.scope import Plan, make_plan

USUAL = "top_k(keep=0.01)"

publish(
    "jaxcomp.transforms.make_mixer",  # publishes mixers and graphs
    compressor=compressors.REGISTRY,
    exchange=exchanges.REGISTRY,
    memory=memory.REGISTRY,
    scope=SCOPES,
)


def make_exchange(
    exchange: str | Call | Exchange = "gather",
    compressor: str | Compressor | None = None,
    memory: str | Call | Pipe = "error_feedback",
    scope: str | Plan = "per_leaf",
    axis: Axis = "workers",
    *,
    policy: Sequence[tuple[str, str]] = (),
    dense: bool = False,
    overlap: int = 1,
    order: Tree | None = None,
) -> Exchange:
    """Build the whole method from spec strings.

    Args:
      exchange: how trees cross workers, a name in `jaxcomp.exchanges.REGISTRY`.
      compressor: a name in `jaxcomp.compressors.REGISTRY`, or several with "|". None
        stands for "top_k(keep=0.01)", if the exchange uses a compressor.
      memory: what happens to the part that is not sent: a name in
        `jaxcomp.memory.REGISTRY`, or several with "|", the first one next to the
        gradient.
      scope: which tensors are compressed as one vector: a name in
        `jaxcomp.scope.REGISTRY`.
      axis: name of the mapped axis.
      policy: pairs (pattern, method) that choose a compressor for each tensor, as in
        `jaxcomp.scope.policy`; instead of a scope.
      dense: send everything uncompressed, with the same state, as some steps of a run
        do.
      overlap: send a tree in so many parts, each as soon as its gradients are computed;
        `jaxcomp.exchanges.overlap.overlapped` says what that changes.
      order: of the parts, `ready_order(jax.grad(loss), params, batch)`.

    Raises:
      SpecError: unknown name, argument or value; the message lists the valid ones. Or
        a compressor for an exchange that uses none, such as `exact`.

    Example:
      >>> make_exchange("aligned_psum", "random_k(keep=0.1)", memory="none").name
      'aligned_psum(random_k(keep=0.1, unbiased=False))'
    """
    usual = USUAL if compressor is None else compressor
    inner = exchanges.make(exchange, usual, make_plan(scope, usual, policy), axis)
    if inner.ignores_compressor or isinstance(exchange, Exchange):
        _check_of_no_use(inner, compressor, policy)
    whole = make_memory(memory, exchanges.dense_step(inner) if dense else inner)
    return whole if overlap == 1 else overlapped(whole, overlap, order)


def compressor_for(exchange: str | Call, compressor: str) -> str | None:
    """The compressor, or None if the exchange does not use one.

    It is for configs, which always name a compressor. Some exchanges ignore it.

    Example:
      >>> compressor_for("gather", "sign"), compressor_for("exact", "sign")
      ('sign', None)
    """
    ignored = exchange and exchanges.make(exchange, compressor).ignores_compressor
    return None if ignored else compressor


def _check_of_no_use(
    exchange: Exchange,
    compressor: str | Compressor | None,
    policy: Sequence[tuple[str, str]],
) -> None:
    """Refuse a compressor or a policy that the exchange would ignore."""
    given = "a policy" if policy else None
    if compressor is not None and make_compressor(compressor).name != "none":
        name = compressor if isinstance(compressor, str) else compressor.name
        given = f"the compressor {name!r}"
    if given:
        raise SpecError(
            f"{exchange.name!r} has no use for {given}: it has a way of its own, or is "
            "built already. Leave it out, or take an exchange such as 'gather'"
        )
