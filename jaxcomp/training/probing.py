"""Parts of a step by themselves, as functions of one worker, to look at or to time."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxcomp.base import Tree
from jaxcomp.link_state import DistributedState
from jaxcomp.tasks import Task
from jaxcomp.training.loss_scale import LossScale, value_and_grad
from jaxcomp.training.state import TrainState, own

__all__ = ["gradient_of", "place_of_talk", "through_link"]

Links = list[optax.GradientTransformation]


def gradient_of(task: Task, scale: LossScale) -> Callable[..., Tree]:
    """The gradient of the loss; of fewer examples than the carry has, their part of it.

    Args:
      task: gives the loss.
      scale: of the loss, by which the gradient is divided again.

    Returns:
      A function from a state and the arrays of a batch to the gradient.
    """

    def gradient(state: TrainState, *batch: Any) -> Tree:
        carry = jax.tree.map(lambda x: x[: len(batch[0])], own(state.carry))
        given = own(state.params), own(state.stats), carry, batch
        differentiated = value_and_grad(task.loss, scale.factor(own(state.loss_scale)))
        return differentiated(*given, jax.random.key(0))[1]

    return gradient


def place_of_talk(state: TrainState) -> int:
    """Which link of the chain is the one where workers talk."""
    parts = own(state.opt_state)
    return [isinstance(part, DistributedState) for part in parts].index(True)


def through_link(links: Links, i: int, grads: Tree, state: TrainState) -> Any:
    """The updates that one link makes, and its state after that.

    Args:
      links: of the chain.
      i: the place of the link.
      grads: what it is given.
      state: with its state.
    """
    link = optax.with_extra_args_support(links[i])
    key = jax.random.key(0)
    return link.update(grads, own(state.opt_state)[i], own(state.params), key=key)
