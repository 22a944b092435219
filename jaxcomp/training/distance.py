"""How far the parameters of a run are from those with which it began."""

from typing import Any

import jax
import numpy as np

from jaxcomp import parallel
from jaxcomp.base import Tree, is_per_worker
from jaxcomp.errors import UserError
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.frame import Frame
from jaxcomp.training.build import Setup
from jaxcomp.training.start import parsed_source, read_start
from jaxcomp.training.state import TrainState, initial_variables, own

__all__ = ["distance_between", "initial_params", "params_on_host"]


def initial_params(
    config: Any, setup: Setup, state: TrainState, start: int, frame: Frame
) -> Tree | None:
    """The parameters with which a run began, on the host; None where they are lost.

    They are in no checkpoint: they follow from the seed, or from another run's.

    Args:
      config: of the run.
      setup: of the run.
      state: at the step `start`.
      start: the step from which on the run goes on, 0 for a new run.
      frame: of the run.
    """
    if not start:
        # Copies: what is only seen here could not be donated to the first step.
        return jax.tree.map(np.array, params_on_host(state))
    if not config.init_from:
        return jax.device_get(initial_variables(setup.task, config.seed).params)
    noted = read_json(frame.folder / "environment.json").get("init_from", {})
    source = f"{parsed_source(config.init_from)[0]}@{noted.get('step', 'last')}"
    try:
        return read_start(source, setup).variables.params
    except UserError as error:
        frame.show.say(f"WARNING: no distance from the start any more: {error}")
        return None


def params_on_host(state: TrainState) -> Tree:
    """The parameters of the first worker that this process has."""
    params = parallel.to_host(state.params)
    return (
        jax.tree.map(lambda x: x[0], own(params)) if is_per_worker(params) else params
    )


def distance_between(a: Tree, b: Tree) -> float:
    """The Euclidean distance of two trees of NumPy arrays.

    Example:
      >>> distance_between({"w": np.array([3.0, 0])}, {"w": np.array([0, 4.0])})
      5.0
    """
    squares = jax.tree.map(
        lambda x, y: np.square(x.astype(np.float64) - y.astype(np.float64)).sum(), a, b
    )
    return float(np.sqrt(sum(jax.tree.leaves(squares))))
