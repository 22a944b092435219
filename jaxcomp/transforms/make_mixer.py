"""From spec strings to a mixer of models: gossip on a graph, or local training."""

from collections import ChainMap
from collections.abc import Sequence

from jaxcomp.core.specs import Call, Pipe, SpecError, error_at, parse, publish, unknown
from jaxcomp.core.types import Axis, Compressor, Exchange, Mixer
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip.topology import REGISTRY as GRAPHS
from jaxcomp.scope import Plan, make_plan
from jaxcomp.transforms.make import make_exchange

MIXERS = ChainMap(gossip.REGISTRY, local.REGISTRY)
publish(mixer=MIXERS, topology=GRAPHS)


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
    return gossip.make(call, topology, codec, make_plan(scope, codec, policy), axis)
