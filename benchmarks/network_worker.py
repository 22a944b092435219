"""One worker of benchmarks/network.py: a process on a host of its own.

It reads a task from its standard input, compiles the exchange or the training step, and
says what it found. Then each line is a number of them to run; the answer is the seconds
of each.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import trees
from benchmarks.crew import member
from configs import default
from jaxcomp import make_exchange, parallel, wire
from jaxcomp.training.feed import loaded, train_feed
from jaxcomp.training.plan import build, parameter_count
from jaxcomp.training.programs import make_programs


def serve() -> None:
    asked, say = member()
    task = next(asked)
    parallel.keep_pages()
    crew = parallel.setup(
        task["workers"],
        coordinator=task["coordinator"],
        processes=task["workers"],
        process=task["rank"],
        platform="cpu",
    )
    if task["model"]:
        run, facts = training(task["case"], task["model"], task["batch"], crew)
    else:
        run, facts = exchanging(task["case"], task["scale"], task["rank"], crew)
    say(facts)
    for times in asked:
        say([run() for _ in range(times)])


def exchanging(
    case: dict[str, Any], scale: float, rank: int, crew: parallel.Workers
) -> tuple[Callable[[], float], dict[str, Any]]:
    """An exchange of this worker's gradient, which returns its time, and its facts."""
    shapes = trees.resnet50(scale)
    generator = np.random.default_rng(rank)
    drawn = generator.standard_normal((1, trees.elements(shapes)), np.float32)
    inputs = parallel.place(trees.cut(drawn, shapes), crew, 0)
    del drawn
    exchange = make_exchange(**case, axis=crew.axis)
    base = jax.random.key(0)

    def step(state: Any, tree: Any) -> Any:
        count, inner = state
        key = jax.random.fold_in(base, count)
        done = exchange.average(tree, inner, key)
        return done.mean, (count + 1, done.state)

    specs = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    state = parallel.spread((jnp.int32(0), exchange.init(specs)), crew)
    axes = parallel.axes(state)
    compiled = (
        parallel.map_step(
            step, crew, in_axes=(axes, 0), out_axes=(None, axes), donate_argnums=(0,)
        )
        .lower(state, inputs)
        .compile()
    )
    holder = [state]
    del state  # its memory is given away by the first exchange
    return _timed(compiled, holder, (inputs,)), _facts(compiled, specs)


def training(
    case: dict[str, Any], model: str, batch: int, crew: parallel.Workers
) -> tuple[Callable[[], float], dict[str, Any]]:
    """The trainer's own step on one batch, which returns its time, and its facts."""
    config = default.get_config()
    config.update(case)
    config.model, config.batch_size, config.workers = model, batch, crew.size
    config.dataset, config.augment = "benchmarks.input_pipeline:pixels", ""
    if case["memory"] == "dgc":  # which has the momentum
        config.optimizer = "dgc_sgd"
    setup = build(config, crew)
    state = parallel.spread(setup.fresh(), crew)
    compiled = make_programs(setup, say=print)(0, state)[0].step
    make = functools.partial(train_feed, local=crew.local, start=0)
    batches = iter(loaded(make, setup.task, crew))
    params = jax.eval_shape(setup.fresh).params

    def step(state: Any, *batch: Any) -> Any:
        state, metrics = compiled(state, *batch)
        return metrics, state

    holder = [state]
    del state  # its memory is given away by the first step
    return _timed(step, holder, next(batches)), _facts(compiled, params)


def _timed(
    program: Callable[..., Any], holder: list[Any], inputs: tuple[Any, ...]
) -> Callable[[], float]:
    """A runner of a program that goes on with the state in `holder`; its seconds."""

    def run() -> float:
        began = time.perf_counter()
        told, holder[0] = program(holder[0], *inputs)
        jax.block_until_ready((told, holder[0]))
        return time.perf_counter() - began

    return run


def _facts(compiled: Any, gradient: Any) -> dict[str, Any]:
    found = [collective._asdict() for collective in wire.collectives(compiled)]
    return {"collectives": found, "elements": parameter_count(gradient)}


if __name__ == "__main__":
    serve()
