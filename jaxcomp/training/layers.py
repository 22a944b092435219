"""What each layer loses: the error of every leaf for one batch."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import data, parallel
from jaxcomp.base import Array, Averaged, Exchange, State, Tree
from jaxcomp.training.build import Setup
from jaxcomp.training.probing import gradient_of, place_of_talk, through_link
from jaxcomp.training.stages import Stage
from jaxcomp.training.state import TrainState
from jaxcomp.trees import norms, widen

__all__ = ["make_layer_view", "watched"]

_ERRORS = "errors_of_leaves"  # of Info.extra


def watched(exchange: Exchange) -> Exchange:
    """The same exchange, which also reports the error of each leaf.

    |given - sent|^2 / |given|^2, where a memory adds to what is given; 0 for a leaf of
    zeros.

    Example:
      >>> from jaxcomp import make_exchange
      >>> exchange = watched(make_exchange(compressor="top_k(keep=0.5)", memory="none"))
      >>> average = lambda x: exchange.average(x, exchange.init(x), jax.random.key(0))
      >>> x = jnp.array([[3.0, 4.0]])  # one worker
      >>> step = jax.vmap(lambda x: average(x).info.extra, axis_name="workers")
      >>> step(x)["errors_of_leaves"]
      Array([[0.36]], dtype=float32)
    """

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        result = exchange.average(tree, state, key)
        lost, given = norms(result.unsent(tree)), norms(widen(tree))
        whole = jnp.stack(given)
        errors = jnp.square(jnp.stack(lost) / jnp.where(whole == 0, 1.0, whole))
        extra = {**result.info.extra, _ERRORS: errors}
        return result._replace(info=result.info._replace(extra=extra))

    return exchange._replace(average=average)


def make_layer_view(
    setup: Setup, state: TrainState
) -> Callable[[TrainState, int, int], list[dict[str, Any]]]:
    """Make a function from a state to the rows of layers.csv.

    It looks at the batch of the step that the run would take next in the same regime,
    and takes no step.
    The program of each stage is compiled when it is first needed.

    Args:
      setup: of the run.
      state: spread over the workers; only its shapes are used.
    """
    workers = setup.workers
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(setup.fresh).params)]

    @functools.cache
    def program(stage: Stage) -> Any:
        links = setup.links(stage, watched)
        gradient = gradient_of(setup.tasks[stage.regime], setup.loss_scale)
        of_regime = jax.eval_shape(lambda: setup.fresh(stage.regime))
        talk = place_of_talk(of_regime)

        def look(state: TrainState, *batch: Any) -> tuple[Array, Array]:
            given = grads = gradient(state, *batch)
            for i in range(talk):
                given, _ = through_link(links, i, given, state)
            _, after = through_link(links, talk, given, state)
            return jnp.stack(norms(grads)), after.info.value.extra[_ERRORS]

        in_axes = (parallel.axes(of_regime), *(0 for _ in setup.task.train))
        return parallel.map_step(look, workers, in_axes=in_axes, out_axes=0)

    def view(state: TrainState, done: int, epoch: int) -> list[dict[str, Any]]:
        stage = setup.stages.at(min(done, setup.total_steps - 1))
        stage = stage._replace(regime=setup.regimes.at(done - 1))  # as the state is
        task, phase = setup.tasks[stage.regime], setup.calendar.at(done - 1)
        epochs, rest = divmod(phase.as_if(done), phase.horizon.steps_per_epoch)
        chosen = task.shares(epochs)[rest, workers.local]
        batch = data.take(task.train, chosen, epochs)
        found = parallel.to_host(
            program(stage)(state, *parallel.place(batch, workers, 0))
        )
        sums = np.stack([np.sum(x, axis=0, dtype=np.float64) for x in found])
        means = parallel.sum_over_processes(sums) / workers.size
        rows = zip(setup.leaf_names, sizes, *means.tolist(), strict=True)
        return [
            dict(zip(("leaf", "elements", "gradient_norm", "error"), row, strict=True))
            | {"epoch": epoch}
            for row in rows
        ]

    return view
