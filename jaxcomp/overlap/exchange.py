"""An exchange in parts: one message after the other, as their gradients are ready."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import (
    Array,
    Averaged,
    Exchange,
    Info,
    Mixer,
    Spec,
    State,
    Tree,
)
from jaxcomp.overlap.cuts import make_cut
from jaxcomp.trees import norm

__all__ = ["overlapped"]


class PartStates(NamedTuple):
    """State of `overlapped`: that of the exchange, for each part."""

    parts: tuple[State, ...]


def overlapped(exchange: Exchange, parts: int, order: Tree | None = None) -> Exchange:
    """Exchange a tree in parts, each as soon as its gradients are computed.

    The tree is cut into parts of about equal bytes, in the order in which gradients
    become ready. Each part is averaged by the exchange, with a message and a state of
    its own, so that the first messages travel beside the rest of the backward pass. A
    message waits for the one before it: they share the network, and the compiler would
    otherwise put them together again.

    What is compressed tensor by tensor gets the same numbers as in one message, to the
    bit where a method adds nothing up, and up to the last bits of its norms and means
    otherwise: another program may add them differently. A scope that joins tensors
    (`whole_tree`, `bucketed`) joins those of one part, so it selects and scales within
    the part. What an exchange or a memory does to the tree as a whole it does to each
    part: `dgc(clip=...)` clips the norm of each part, and `budget` has its number of
    bits for each.

    Args:
      exchange: any exchange, with its memories.
      parts: their number; 1 returns the exchange as it is.
      order: a tree of numbers from `ready_order`. Without it the leaves are taken from
        the last name to the first one. A wrong order costs overlap and changes no
        result, except in scopes that join tensors.

    Example:
      >>> from jaxcomp import make_exchange
      >>> exchange = overlapped(make_exchange(compressor="sign"), 2)
      >>> tree = {"a": jnp.ones((2, 64)), "b": jnp.ones((2, 64))}  # two workers
      >>> one = {"a": jnp.ones(64), "b": jnp.ones(64)}
      >>> step = lambda x: exchange.average(x, exchange.init(one), jax.random.key(0))
      >>> mean = jax.vmap(lambda x: step(x).mean, axis_name="workers")(tree)
      >>> float(mean["a"][0, 0])
      1.0
    """
    cut = make_cut(parts, order)
    if isinstance(exchange, Mixer):
        raise TypeError(
            f"overlap cuts gradients, and {exchange.name!r} sends models, which are "
            "there before the step. To mix models beside the gradient's computation "
            "take the mixer 'choco_overlapped'"
        )
    if parts == 1:
        return exchange

    def init(tree: Tree) -> PartStates:
        return PartStates(tuple(exchange.init(part) for part in cut.trees(tree)))

    def average(tree: Tree, state: PartStates, key: Array) -> Averaged:
        results: list[Averaged] = []
        for part, inner in zip(cut.trees(tree), state.parts, strict=True):
            given = _after(results[-1].mean, part) if results else part
            results.append(exchange.average(given, inner, key))
        own = [r.sent if r.own_sent is None else r.own_sent for r in results]
        is_own = any(r.own_sent is not None for r in results)
        return Averaged(
            _joined([r.mean for r in results]),
            _joined([r.sent for r in results]),
            PartStates(tuple(r.state for r in results)),
            _info_of([r.info for r in results]),
            _joined(own) if is_own else None,
        )

    def held(state: PartStates) -> Tree:
        assert exchange.held is not None
        return _joined([exchange.held(inner) for inner in state.parts])

    def of_leaves(facts: Callable[[Spec], list[Any]], spec: Spec) -> list[Any]:
        result: list[Any] = [None] * len(jax.tree.leaves(spec))
        for places, part in zip(cut.places(spec), cut.trees(spec), strict=True):
            for place, fact in zip(places, facts(part), strict=True):
                result[place] = fact
        return result

    return exchange._replace(
        name=f"overlapped(parts={parts}): {exchange.name}",
        init=init,
        average=average,
        held=held if exchange.held else None,
        contraction=functools.partial(of_leaves, exchange.contraction),
        chooses=functools.partial(of_leaves, exchange.chooses),
        clear=None,  # there is no payload of the whole tree
    )


def _after(mean: Tree, part: Tree) -> Tree:
    """A part whose message cannot start before the message of `mean` has arrived."""
    arrived = [leaf for leaf in jax.tree.leaves(mean) if leaf.size]
    if not arrived:
        return part
    smallest = min(arrived, key=lambda leaf: leaf.size)
    return jax.lax.optimization_barrier((part, smallest))[0]


def _joined(parts: list[Tree]) -> Tree:
    """The tree that was cut: each leaf is None in all parts but one."""

    def one_of(*leaves: Any) -> Any:
        return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(one_of, *parts, is_leaf=lambda x: x is None)


def _info_of(infos: list[Info]) -> Info:
    """What the parts report, as one: norms as of all, figures added."""
    given = norm([info.given_norm for info in infos])
    lost = norm([info.unsent_norm for info in infos])
    return Info(
        gradient_error=jnp.square(lost / jnp.where(given == 0, 1.0, given)),
        unsent_norm=lost,
        residual_norm=norm([info.residual_norm for info in infos]),
        extra={
            name: functools.reduce(jnp.add, [info.extra[name] for info in infos])
            for name in infos[0].extra
        },
        sends=functools.reduce(jnp.logical_or, [info.sends for info in infos]),
        given_norm=given,
    )
