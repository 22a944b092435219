"""The state of a link in an optax chain: where it is found, and the key of its step."""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Axis, Clock, Info, PerWorker, State, Tree, is_per_worker
from jaxcomp.border import axis_index, is_masked
from jaxcomp.trees import vary_like

__all__ = [
    "DistributedState",
    "find_state",
    "find_states",
    "first_state",
    "step_key",
    "typed_to_differ",
]


class DistributedState(NamedTuple):
    """State of `distributed`, `pmean` and `mixing`."""

    clock: Clock  # each step draws its own key
    exchange: State  # of the exchange or the mixer
    info: PerWorker  # the last step's Info, for whoever logs it

    @property
    def step(self) -> Array:
        """[] int32, steps done."""
        return self.clock.step


def find_state(opt_state: Any) -> DistributedState:
    """The `DistributedState` inside the state of any optax chain.

    Example:
      >>> import optax
      >>> from jaxcomp import distributed, make_exchange
      >>> tx = optax.chain(distributed(make_exchange(), seed=0), optax.adam(0.1))
      >>> int(find_state(tx.init(jnp.ones(3))).step)
      0
    """
    states = find_states(opt_state)
    if len(states) != 1:
        raise ValueError(
            "expected one `distributed` or `mixing` in the chain, found "
            f"{len(states)}. find_states() returns all; or pass the part of the state "
            "that holds the one you mean"
        )
    return states[0]


def find_states(opt_state: Any) -> list[DistributedState]:
    """All of them, where links have parts of the model; in the order of the tree.

    Example:
      >>> import optax
      >>> from jaxcomp import distributed, make_exchange
      >>> link = distributed(make_exchange(), seed=0, allow_masked=True)
      >>> tx = optax.multi_transform({"w": link, "b": link}, {"w": "w", "b": "b"})
      >>> len(find_states(tx.init({"w": jnp.ones(3), "b": jnp.ones(1)})))
      2
    """

    def found(node: Any) -> bool:
        return isinstance(node, DistributedState)

    return [n for n in jax.tree.leaves(opt_state, is_leaf=found) if found(n)]


def first_state(state: State, figures: tuple[str, ...]) -> DistributedState:
    """Before the first step, around the state of an exchange or a mixer."""
    zero = jnp.float32(0)
    extra = {name: jnp.float32(0) for name in figures}
    info = Info(zero, zero, zero, extra, sends=jnp.bool_(False), given_norm=zero)
    return DistributedState(Clock(jnp.int32(0)), state, PerWorker(info))


def typed_to_differ(state: State, axis: Axis) -> State:
    """The state, with the types of its marked parts saying that workers differ.

    A marked part may happen to be constant, and JAX would then type it as equal on all
    workers. A loop wants the type with which the state came in.
    """

    def typed(node: Any) -> Any:
        return vary_like(node, axis_index(axis)) if is_per_worker(node) else node

    return jax.tree.map(typed, state, is_leaf=is_per_worker)


def step_key(key: Array | None, seed: int | None, step: Array, tree: Tree) -> Array:
    """The key of a step for this tree, from the caller's key or the link's seed."""
    if key is None:
        if seed is None:
            message = (
                "update() needs key=, the same on every worker; or build the link with "
                "a seed: distributed(exchange, seed=0), mixing(mixer, seed=0)"
            )
            raise TypeError(message)
        key = jax.random.key(seed)
    part = _part_of_model(tree)
    if part:
        key = jax.random.fold_in(key, part)
    return jax.random.fold_in(key, step)


def _part_of_model(tree: Tree) -> int:
    """A number for the part of a model that a link is given; 0 for the whole.

    Links that share a model would draw the same noise from one seed. Names, and not
    their `hash`, which is another one in each process.
    """

    def left_out(node: Any) -> bool:
        return node is None or is_masked(node)

    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=left_out)
    names = [jax.tree_util.keystr(path) for path, node in paths if not left_out(node)]
    return 0 if len(names) == len(paths) else zlib.crc32("\n".join(names).encode())
