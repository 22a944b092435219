"""From spec strings to a method: an exchange of gradients, or a mixer of models."""

from collections import ChainMap
from collections.abc import Sequence

from jaxcomp import compressors, exchanges, memory
from jaxcomp.compressors import make as make_compressor
from jaxcomp.core.specs import Call, Pipe, SpecError, error_at, parse, publish, unknown
from jaxcomp.core.types import Axis, Compressor, Exchange, Mixer
from jaxcomp.memory import make as make_memory
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip.topology import REGISTRY as GRAPHS
from jaxcomp.scope import REGISTRY as SCOPES
from jaxcomp.scope import Plan, make_plan
from jaxcomp.scope import policy as make_policy

USUAL = "top_k(keep=0.01)"
MIXERS = ChainMap(gossip.REGISTRY, local.REGISTRY)

publish(
    compressor=compressors.REGISTRY,
    exchange=exchanges.REGISTRY,
    memory=memory.REGISTRY,
    mixer=MIXERS,
    scope=SCOPES,
    topology=GRAPHS,
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

    Raises:
      SpecError: unknown name, argument or value; the message lists the valid ones. Or
        a compressor for an exchange that uses none, such as `exact`.

    Example:
      >>> make_exchange("aligned_psum", "random_k(keep=0.1)", memory="none").name
      'aligned_psum(random_k(keep=0.1, unbiased=False))'
    """
    usual = USUAL if compressor is None else compressor
    inner = exchanges.make(exchange, usual, plan_for(usual, scope, policy), axis)
    if inner.ignores_compressor or isinstance(exchange, Exchange):
        _check_of_no_use(inner, compressor, policy)
    return make_memory(memory, exchanges.dense_step(inner) if dense else inner)


def make_mixer(
    mixer: str | Call,
    topology: str | gossip.Topology | None = None,
    workers: int | None = None,
    *,
    compressor: str | Compressor | None = "none",
    scope: str | Plan = "per_leaf",
    policy: Sequence[tuple[str, str]] = (),
    exchange: str | Call | Exchange | None = None,
    memory: str | Call | Pipe = "none",
    axis: Axis = "workers",
    dense: bool = False,
) -> Mixer:
    """Build a method by which every worker trains a model of its own.

    Args:
      mixer: a name in `jaxcomp.mixers.gossip.REGISTRY`, which needs a topology, or in
        `jaxcomp.mixers.local.REGISTRY`, which needs an exchange.
      topology: spec of the graph, or a graph.
      workers: their number, for a graph's spec.
      compressor: as in `make_exchange`.
      scope: which tensors are compressed as one vector.
      policy: pairs (pattern, method), instead of a scope.
      exchange: for local methods: how workers average what they have learnt.
      memory: of that exchange.
      axis: name of the mapped axis.
      dense: for local methods: send everything uncompressed, with the same state.

    Raises:
      SpecError: unknown name, argument or value; the message lists the valid ones.

    Example:
      >>> make_mixer("choco(gamma=0.4)", "ring", 8, compressor="sign").name
      'choco(gamma=0.4) on ring, sign'
      >>> make_mixer("local_sgd(h=4)", exchange="exact").schedule
      (0, 0, 0, 1)
    """
    call = parse(mixer) if isinstance(mixer, str) else mixer
    if not isinstance(call, Call):
        raise SpecError(f"a mixer is one name with arguments, not {str(call)!r}")
    if call.name in local.REGISTRY:
        if topology is not None:
            raise error_at(call, f"{call.name} has no topology: all workers take part")
        if exchange is None:
            raise error_at(call, f"{call.name} needs an exchange, such as 'gather'")
        built = make_exchange(
            exchange, compressor, memory, scope, axis, policy=policy, dense=dense
        )
        return local.make(call, built)
    if call.name not in gossip.REGISTRY:
        raise error_at(call, unknown("mixer", call.name, MIXERS))
    if exchange is not None or memory != "none" or dense:
        raise error_at(
            call,
            f"{call.name} sends to neighbours: it takes no exchange, no memory and no "
            "dense steps",
        )
    if isinstance(topology, str):
        if workers is None:
            raise error_at(call, f"the topology {topology!r} needs workers=")
        topology = gossip.topology(topology, workers)
    if topology is None:
        raise error_at(call, f"{call.name} needs a topology, such as 'ring'")
    codec = compressor or "none"
    return gossip.make(call, topology, codec, plan_for(codec, scope, policy), axis)


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


def plan_for(
    compressor: str | Compressor, scope: str | Plan, policy: Sequence[tuple[str, str]]
) -> Plan:
    """The plan of a scope, or that of a policy instead of it."""
    if not policy:
        return make_plan(scope, compressor)
    if scope != "per_leaf":
        raise SpecError(f"a policy is a scope of its own; {scope!r} cannot be one too")
    return make_policy(make_compressor(compressor), rules=policy)
