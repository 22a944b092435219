"""From the optimiser of a regime to that of the next, in the middle of a run."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import parallel
from jaxcomp.core.trees import name_of
from jaxcomp.core.types import Clock, Tree, is_clock
from jaxcomp.training.setup import Setup
from jaxcomp.training.state import TrainState, mark_like, unmark
from jaxcomp.transforms.distributed import DistributedState, find_state

Path = tuple[Any, ...]


def carried(old: tuple[Any, ...], fresh: tuple[Any, ...]) -> tuple[Any, ...]:
    """The state of a new chain, with what the old one knows.

    The link where workers talk keeps all of its state, and clocks show its step. Of the
    other links, arrays go on where name, shape and dtype agree, such as the moments of
    `adam` in `adamw`. The rest is fresh.

    Args:
      old: state of the old chain.
      fresh: of the new one, as `init` made it.
    """
    talk = find_state(old)
    known: dict[str, Any] = {
        _name(path): leaf
        for state in old
        if state is not talk
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }

    def of(path: Path, leaf: Any) -> Any:
        if is_clock(leaf):
            return Clock(jnp.copy(talk.step))
        before = known.get(_name(path), leaf)
        is_alike = (before.shape, before.dtype) == (leaf.shape, leaf.dtype)
        return before if is_alike else leaf

    return tuple(
        talk
        if isinstance(state, DistributedState)
        else jax.tree_util.tree_map_with_path(of, state, is_leaf=is_clock)
        for state in fresh
    )


def make_switch(
    setup: Setup, say: Callable[[str], None]
) -> Callable[[TrainState, int], TrainState]:
    """Make a function that hands the state to the regime of the next step.

    Args:
      setup: of the run.
      say: where a regime that begins is announced.

    Returns:
      A function from a state and the number of the next step, from 0, to the state with
      which that step is taken.
    """

    def switch(state: TrainState, number: int) -> TrainState:
        if number >= setup.total_steps or not setup.regimes.begins(number):
            return state
        now = setup.regimes.at(number)
        say(str(setup.regimes.each[now]))
        before, wanted = (
            jax.eval_shape(functools.partial(setup.fresh, regime))
            for regime in (now - 1, now)
        )
        if _specs(before) == _specs(wanted):
            return state
        return parallel.map_step(
            lambda state: _switched(state, setup, now),
            setup.workers,
            in_axes=(parallel.axes(state),),
            out_axes=parallel.axes(wanted),
            donate_argnums=(0,),
        )(state)

    return switch


def saved_like(setup: Setup) -> Callable[[int], Tree]:
    """Make a function from the step of a checkpoint to what it holds.

    That is the state of the regime of its last step: a switch comes with the next one.

    Args:
      setup: of the run.
    """

    def like(done: int) -> Tree:
        regime = setup.regimes.at(max(0, done - 1))
        fresh = jax.eval_shape(functools.partial(setup.fresh, regime))
        return parallel.spread_spec(fresh, setup.workers)

    return like


def _switched(state: TrainState, setup: Setup, regime: int) -> TrainState:
    """The state of one worker, with the chain of another regime."""
    tx = setup.chain(regime)
    fresh: Any = tx.init(unmark(state.params))
    opt_state = carried(unmark(state.opt_state), fresh)
    return state._replace(opt_state=mark_like(state.opt_state, opt_state))


def _specs(tree: Tree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _name(path: Path) -> str:
    """The name of an array in the state of a link, wherever the link stands."""
    is_place = [isinstance(key, jax.tree_util.SequenceKey) for key in path]
    return name_of(path[[*is_place, False].index(False) :])
