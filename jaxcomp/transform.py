"""From an exchange, or a mixer, to one link of an optax chain."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp import exchanges, gossip, local, memory
from jaxcomp.base import (
    Array,
    Axis,
    Compressor,
    Exchange,
    Info,
    Mixer,
    PerWorker,
    State,
    Tree,
)
from jaxcomp.compressors import make as make_compressor
from jaxcomp.scope import Plan
from jaxcomp.scope import policy as _policy
from jaxcomp.specs import Call, Pipe, SpecError, error_at, parse, suggest

__all__ = [
    "DistributedState",
    "distributed",
    "find_state",
    "make_exchange",
    "make_mixer",
    "mixing",
]


class DistributedState(NamedTuple):
    """State of `distributed` and of `mixing`."""

    step: Array  # [] int32, steps taken: each step draws its own key
    exchange: State  # of the exchange or the mixer
    info: PerWorker  # the last step's Info, for whoever logs it


def make_exchange(
    exchange: str | Call | Exchange = "gather",
    compressor: str | Compressor = "top_k(keep=0.01)",
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
      compressor: what is lost, a name in `jaxcomp.compressors.REGISTRY` or a
        composition with "|".
      memory: what happens to the loss, a name in `jaxcomp.memory.REGISTRY`, or several
        with "|", the first one next to the gradient.
      scope: what is compressed as one vector, a name in `jaxcomp.scope.REGISTRY`.
      axis: name of the mapped axis.
      policy: pairs (pattern, method) that choose for each tensor, as in
        `jaxcomp.scope.policy`; in place of a scope.
      dense: send everything as it is, with the same state: for some steps of a run.

    Raises:
      SpecError: unknown name, argument or value; the message lists the valid ones.

    Example:
        >>> make_exchange("aligned_psum", "random_k(keep=0.1)", memory="none").name
        'aligned_psum(random_k(keep=0.1, unbiased=False))'
    """
    scope = _plan(compressor, scope, policy)
    inner = exchanges.make(exchange, compressor, scope, axis)
    return _make_memory(memory, exchanges.dense_step(inner) if dense else inner)


def make_mixer(
    mixer: str | Call,
    topology: str | gossip.Topology | None = None,
    workers: int | None = None,
    *,
    compressor: str | Compressor = "none",
    scope: str | Plan = "per_leaf",
    policy: Sequence[tuple[str, str]] = (),
    exchange: str | Call | Exchange | None = None,
    memory: str | Call | Pipe = "none",
    axis: Axis = "workers",
    dense: bool = False,
) -> Mixer:
    """Build a method by which every worker trains a model of its own.

    Args:
      mixer: a name in `jaxcomp.gossip.REGISTRY`, which needs a topology, or in
        `jaxcomp.local.REGISTRY`, which needs an exchange.
      topology: spec of the graph, or a graph.
      workers: their number, for a graph's spec.
      compressor: what is lost, as in `make_exchange`.
      scope: what is compressed as one vector.
      policy: pairs (pattern, method), in place of a scope.
      exchange: of local methods: how workers average what they have learnt.
      memory: of that exchange.
      axis: name of the mapped axis.
      dense: of local methods: send everything as it is, with the same state.

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
        hint = suggest(call.name, [*gossip.REGISTRY, *local.REGISTRY])
        raise error_at(call, f"unknown mixer {call.name!r}. {hint}")
    if exchange is not None or memory != "none" or dense:
        message = (
            f"{call.name} sends to neighbours: it takes no exchange, no memory and no "
            "dense steps"
        )
        raise error_at(call, message)
    if isinstance(topology, str):
        if workers is None:
            raise error_at(call, f"the topology {topology!r} needs workers=")
        topology = gossip.topology(topology, workers)
    if topology is None:
        raise error_at(call, f"{call.name} needs a topology, such as 'ring'")
    return gossip.make(
        call, topology, compressor, _plan(compressor, scope, policy), axis
    )


_make_memory = memory.make  # `make_exchange` has an argument of the module's name


def distributed(
    exchange: Exchange, seed: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Average gradients over the workers of a mapped axis, inside an optax chain.

    The one link of the chain where workers talk: what stands before it works on the
    local gradient, what stands after it sees the same mean on every worker.

    Args:
      exchange: from `make_exchange`.
      seed: derives all keys from this seed and the step, for loops that cannot pass
        `key=` to `update`, such as flax's TrainState. Without it, `update` needs
        `key=`: the same key on every worker, a base key is enough.

    Example:
        >>> tx = optax.chain(
        ...     distributed(make_exchange(compressor="sign"), seed=0), optax.sgd(0.1)
        ... )
        >>> params = jnp.ones(3)
        >>> state = tx.init(params)
        >>> grads = jnp.array([[1.0, 2.0, -3.0], [3.0, 2.0, -1.0]])  # two workers
        >>> step = lambda g: tx.update(g, state, params)[0]
        >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
        Array([-0.2, -0.2,  0.2], dtype=float32)
    """
    if not isinstance(exchange, Exchange):
        message = (
            f"distributed() takes an Exchange from make_exchange, not {exchange!r}"
        )
        raise TypeError(message)

    def init(params: Tree) -> DistributedState:
        return _fresh(exchange.init(params), exchange.figures)

    def update(
        updates: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        key: Array | None = None,
        **extra: Any,
    ) -> tuple[Tree, DistributedState]:
        key = _step_key(key, seed, state.step)
        mean, _, inner, info = exchange.average(updates, state.exchange, key)
        return mean, DistributedState(state.step + 1, inner, PerWorker(info))

    return optax.GradientTransformationExtraArgs(init, update)


def mixing(
    mixer: Mixer, seed: int | None = None, program: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Draw the workers' models together: the last link of a decentralised chain.

    What stands before it works on the local gradient and ends in the local update,
    momentum included. Parameters and the whole state are the worker's own: map all of
    them (in_axes=0), or mark them `PerWorker`.

    Args:
      mixer: from `make_mixer`.
      seed: as in `distributed`.
      program: compile this program of the mixer's schedule alone, for loops with a
        compiled step for each; default: the step decides which one runs.

    Example:
        >>> ring = make_mixer("choco(gamma=0.5)", "ring", 4, compressor="sign")
        >>> tx = optax.chain(optax.sgd(0.1), mixing(ring, seed=0))
        >>> params = jnp.zeros((4, 3))  # four workers
        >>> state = jax.vmap(tx.init)(params)
        >>> step = lambda g, s, p: tx.update(g, s, p)[0]
        >>> grads = jnp.ones((4, 3))
        >>> updates = jax.vmap(step, axis_name="workers")(grads, state, params)
        >>> updates.shape
        (4, 3)
    """
    if not isinstance(mixer, Mixer):
        raise TypeError(f"mixing() takes a Mixer from make_mixer, not {mixer!r}")
    programs = sorted(set(mixer.schedule))

    def init(params: Tree) -> DistributedState:
        return _fresh(mixer.init(params), mixer.figures)

    def update(
        updates: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        key: Array | None = None,
        **extra: Any,
    ) -> tuple[Tree, DistributedState]:
        if params is None:
            raise TypeError("update() of mixing needs params: it averages models")
        key = _step_key(key, seed, state.step)

        def run(program: int) -> Any:
            return mixer.mix(params, updates, state.exchange, key, program)

        if program is not None or len(programs) == 1:
            mixed = run(programs[0] if program is None else program)
        else:
            places = [programs.index(p) for p in mixer.schedule]
            now = jnp.asarray(places)[state.step % len(places)]
            branches = [functools.partial(run, p) for p in programs]
            mixed = jax.lax.switch(now, branches)
        new = DistributedState(state.step + 1, mixed.state, PerWorker(mixed.info))
        return mixed.updates, new

    return optax.GradientTransformationExtraArgs(init, update)


def find_state(opt_state: Any) -> DistributedState:
    """The `DistributedState` inside the state of any optax chain.

    Example:
        >>> tx = optax.chain(distributed(make_exchange(), seed=0), optax.adam(0.1))
        >>> int(find_state(tx.init(jnp.ones(3))).step)
        0
    """

    def found(node: Any) -> bool:
        return isinstance(node, DistributedState)

    states = [n for n in jax.tree.leaves(opt_state, is_leaf=found) if found(n)]
    if len(states) != 1:
        raise ValueError(
            f"expected one `distributed` or `mixing` in the chain, found {len(states)}"
        )
    return states[0]


def _plan(
    compressor: str | Compressor,
    scope: str | Plan,
    policy: Sequence[tuple[str, str]],
) -> str | Plan:
    """The scope, or the plan that a policy makes in its place."""
    if not policy:
        return scope
    if scope != "per_leaf":
        raise SpecError(f"a policy is a scope of its own; {scope!r} cannot be one too")
    return _policy(make_compressor(compressor), rules=policy)


def _fresh(state: State, figures: tuple[str, ...]) -> DistributedState:
    zero = jnp.float32(0)
    info = Info(zero, zero, zero, {name: jnp.float32(0) for name in figures})
    return DistributedState(jnp.int32(0), state, PerWorker(info))


def _step_key(key: Array | None, seed: int | None, step: Array) -> Array:
    """The key of a step, from the caller's key or the link's seed."""
    if key is None:
        if seed is None:
            message = (
                "update() needs key=, the same on every worker; or build the link with "
                "a seed: distributed(exchange, seed=0), mixing(mixer, seed=0)"
            )
            raise TypeError(message)
        key = jax.random.key(seed)
    return jax.random.fold_in(key, step)
