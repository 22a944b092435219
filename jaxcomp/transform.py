"""From an exchange to one link of an optax chain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp import exchanges, memory
from jaxcomp.base import (
    Array,
    Axis,
    Compressor,
    Exchange,
    Info,
    PerWorker,
    State,
    Tree,
)
from jaxcomp.compressors import make as make_compressor
from jaxcomp.scope import Plan
from jaxcomp.scope import policy as _policy
from jaxcomp.specs import Call, Pipe, SpecError

__all__ = ["DistributedState", "distributed", "find_state", "make_exchange"]


class DistributedState(NamedTuple):
    """State of `distributed`."""

    step: Array  # [] int32, steps taken: each step draws its own key
    exchange: State
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
    if policy:
        if scope != "per_leaf":
            raise SpecError(
                f"a policy is a scope of its own; {scope!r} cannot be one too"
            )
        scope = _policy(make_compressor(compressor), rules=policy)
    inner = exchanges.make(exchange, compressor, scope, axis)
    return _make_memory(memory, exchanges.dense_step(inner) if dense else inner)


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
        zero = jnp.float32(0)
        info = Info(
            zero, zero, zero, {name: jnp.float32(0) for name in exchange.figures}
        )
        state = exchange.init(params)
        return DistributedState(jnp.int32(0), state, PerWorker(info))

    def update(
        updates: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        key: Array | None = None,
        **extra: Any,
    ) -> tuple[Tree, DistributedState]:
        if key is None:
            if seed is None:
                message = (
                    "update() needs key=, the same on every worker; or build the link "
                    "with distributed(exchange, seed=0)"
                )
                raise TypeError(message)
            key = jax.random.key(seed)
        key = jax.random.fold_in(key, state.step)
        mean, _, inner, info = exchange.average(updates, state.exchange, key)
        return mean, DistributedState(state.step + 1, inner, PerWorker(info))

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
            f"expected one `distributed` in the chain, found {len(states)}"
        )
    return states[0]
