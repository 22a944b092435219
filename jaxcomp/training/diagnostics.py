"""Looks into a run: layers, parts of a step, replicas, distances."""

import collections
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp import data, parallel
from jaxcomp.core.errors import RunFailed, UserError
from jaxcomp.core.files import write_atomically
from jaxcomp.core.trees import name_of, norms, numbers_of, widen
from jaxcomp.core.types import Array, Averaged, Exchange, State, Tree, is_per_worker
from jaxcomp.core.units import seconds_text
from jaxcomp.parallel.placing import of_processes, sum_over_processes
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.open_run import Frame
from jaxcomp.runs.table import LAYERS
from jaxcomp.training import checkpoints
from jaxcomp.training.feed import loaded, train_feed
from jaxcomp.training.plan import RunPlan
from jaxcomp.training.stages import Stage
from jaxcomp.training.state import (
    LossScale,
    TrainState,
    initial_variables,
    unmark,
    value_and_grad,
)
from jaxcomp.training.tasks import Task
from jaxcomp.transforms.distributed import DistributedState
from jaxcomp.transforms.make import make_exchange
from jaxcomp.wire import first_message, without_messages

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
        carry = jax.tree.map(lambda x: x[: len(batch[0])], unmark(state.carry))
        given = unmark(state.params), unmark(state.stats), carry, batch
        differentiated = value_and_grad(
            task.loss, scale.factor(unmark(state.loss_scale))
        )
        return differentiated(*given, jax.random.key(0))[1]

    return gradient


def place_of_exchange(state: TrainState) -> int:
    """Which link of the chain exchanges."""
    parts = unmark(state.opt_state)
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
    return link.update(grads, unmark(state.opt_state)[i], unmark(state.params), key=key)


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
    plan: RunPlan, state: TrainState
) -> Callable[[TrainState, int, int], list[dict[str, Any]]]:
    """Make a function from a state to the rows of layers.csv.

    It looks at the batch of the step that the run would take next in the same segment,
    and takes no step.
    The program of each stage is compiled when it is first needed.

    Args:
      plan: of the run.
      state: spread over the workers; only its shapes are used.
    """
    workers, run = plan.workers, plan.segments
    sizes = [leaf.size for leaf in jax.tree.leaves(plan.params)]

    config = plan.config.copy_and_resolve_references()
    config.memory = "none"
    bare = plan._replace(config=config)

    @functools.cache
    def program(stage: Stage) -> Any:
        inner: Any = bare.method_of(stage)  # what a memory adds is part of what is lost
        links = plan.links(
            stage, make_exchange(watched(inner), None, plan.config.memory)
        )
        gradient = gradient_of(plan.segments.each[stage.segment].task, plan.loss_scale)
        of_segment = jax.eval_shape(lambda: plan.fresh(stage.segment))
        place = place_of_exchange(of_segment)

        def look(state: TrainState, *batch: Any) -> tuple[Array, Array]:
            given = grads = gradient(state, *batch)
            for i in range(place):
                given, _ = through_link(links, i, given, state)
            _, after = through_link(links, place, given, state)
            return jnp.stack(norms(grads)), after.info.value.extra[_ERRORS]

        in_axes = (parallel.axes(of_segment), *(0 for _ in plan.task.train))
        return parallel.map_step(look, workers, in_axes=in_axes, out_axes=0)

    def view(state: TrainState, done: int, epoch: int) -> list[dict[str, Any]]:
        stage = plan.stages.at(min(done, plan.total_steps - 1))
        stage = stage._replace(segment=run.number(done - 1))  # as the state is
        task, calendar = run.at(done - 1).task, run.at(done - 1).calendar
        epochs, rest = divmod(calendar.as_if(done), calendar.horizon.steps_per_epoch)
        chosen = task.shares(epochs)[rest, workers.local]
        batch = data.take(task.train, chosen, epochs)
        found = parallel.to_host(
            program(stage)(state, *parallel.place(batch, workers, 0))
        )
        sums = np.stack([np.sum(x, axis=0, dtype=np.float64) for x in found])
        means = sum_over_processes(sums) / workers.size
        rows = zip(plan.leaf_names, sizes, *means.tolist(), strict=True)
        return [dict(zip(LAYERS.columns, (epoch, *r), strict=True)) for r in rows]

    return view


TIMES = 10  # each program runs, after once to warm up; all processes run it as often
_HOW = {
    "data": "a batch is taken and put on the devices",
    "forward_backward": "the gradient, compiled alone",
    "compress": "what the first message needs, compiled alone",
    "communicate": "the exchange, less the exchange without messages",
    "decode": "the exchange without messages, less compress",
    "update": "the other links of the chain, compiled alone",
}
_LOOKED_AT = 200  # last steps, in which one that sends is looked for


def time_parts(plan: RunPlan, state: TrainState, frame: Frame) -> None:
    """Time the parts of a step on all processes, and write breakdown.csv.

    Args:
      plan: of the run.
      state: spread over the workers.
      frame: of the run.
    """
    frame.show.say("timing the parts of a step, each compiled alone")
    seconds = breakdown(plan, state)
    rows = [
        f'{part},{1000 * seconds[part]:.6g},"{how}"\n' for part, how in _HOW.items()
    ]
    if frame.writes:
        write_atomically(
            frame.folder / "breakdown.csv", "part,ms,how\n" + "".join(rows)
        )
    frame.show.say(", ".join(f"{part} {seconds_text(seconds[part])}" for part in _HOW))


def breakdown(plan: RunPlan, state: TrainState) -> dict[str, float]:
    """Seconds of the parts of a step of a run; the state stays as it is.

    Args:
      plan: of the run.
      state: spread over the workers.
    """
    workers, axes = plan.workers, parallel.axes(state)
    task = plan.segments.at(plan.total_steps - 1).task
    batches = functools.partial(train_feed, local=workers.local, start=0)
    feed = loaded(batches, task, workers)
    links, place = plan.links(_stage_that_sends(plan)), place_of_exchange(state)

    def load() -> Any:
        return next(feed)

    def mapped(function: Callable[..., Tree], *given: Any) -> Callable[[], Tree]:
        """The function of one worker, of the state and stacks, for all workers."""
        in_axes = (axes, *(0 for _ in given))
        run = parallel.map_step(function, workers, in_axes=in_axes, out_axes=0)
        return lambda: run(state, *given)

    def exchange(state: TrainState, grads: Tree) -> Tree:
        return through_link(links, place, grads, state)

    def others(state: TrainState, grads: Tree) -> Tree:
        states = []
        for i in range(len(links)):
            if i != place:
                grads, after = through_link(links, i, grads, state)
                states.append(after)
        return optax.apply_updates(unmark(state.params), grads), states

    micro = [array[:, : array.shape[1] // plan.config.accumulate] for array in load()]
    gradient = mapped(gradient_of(task, plan.loss_scale), *micro)
    grads, axis = gradient(), workers.device_axis
    whole = _median(mapped(exchange, grads))
    quiet = _median(mapped(without_messages(exchange, axis), grads))
    first = min(quiet, _median(mapped(first_message(exchange, axis), grads)))
    return {
        "data": _median(load),
        "forward_backward": _median(gradient) * plan.config.accumulate,
        "compress": first,
        "communicate": max(0.0, whole - quiet),
        "decode": quiet - first,
        "update": _median(mapped(others, grads)),
    }


def _stage_that_sends(plan: RunPlan) -> Stage:
    """Of the last steps, one that sends, and compressed if there is such a one."""
    last = range(max(0, plan.total_steps - _LOOKED_AT), plan.total_steps)
    segment = plan.segments.number(plan.total_steps - 1)
    stages = [plan.stages.at(step)._replace(segment=segment) for step in last]
    return max(stages, key=lambda stage: (not stage.dense, stage.phase))


def _median(run: Callable[[], Any]) -> float:
    """Seconds of a call, the median of several after the first."""
    jax.block_until_ready(run())
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


class ReplicasDiffer(RunFailed, ArithmeticError):
    """Workers that share one state have different copies of it."""


def make_replica_check(
    workers: parallel.Workers, state: Tree
) -> Callable[[Tree, int], None]:
    """Make a function that compares the copies of a state after a number of steps.

    Each copy is hashed where it is, and one number for each array goes to the host. A
    copy in which one number differs is always found, and others almost always.

    Args:
      workers: of the run.
      state: spread over the workers; only its shapes are used.

    Returns:
      A function (state, steps done) that raises `ReplicasDiffer`.
    """
    if workers.mesh is None or workers.size == 1 or not _shared(state):
        return lambda state, done: None
    mapped = parallel.map_step(
        lambda leaves, one: jnp.stack([one * _hash(leaf) for leaf in leaves]),
        workers,
        in_axes=(None, 0),  # pmap wants an argument that is mapped
        out_axes=0,
    )
    here = workers.local.stop - workers.local.start
    ones = parallel.place(np.ones(here, np.uint32), workers, 0)
    each = workers.mesh.devices.flat
    devices = [str(device) for device in each for _ in range(workers.per_device)]

    def check(state: TrainState, done: int) -> None:
        names, shared = map(list, zip(*_shared(state), strict=True))
        found = of_processes(parallel.to_host(mapped(shared, ones)))
        found = found.reshape(workers.size, len(names))
        usual = [collections.Counter(x).most_common(1)[0][0] for x in found.T.tolist()]
        different = np.argwhere(found != np.array(usual, found.dtype))
        if different.size:
            raise ReplicasDiffer(_message(different, names, devices, done))

    return check


def _shared(state: Tree) -> list[tuple[str, Any]]:
    """The names and arrays of the parts that all workers have alike."""
    nodes, _ = jax.tree_util.tree_flatten_with_path(state, is_per_worker)
    shared = [(name_of(path), x) for path, x in nodes if not is_per_worker(x)]
    return [(name, leaf) for name, leaf in shared if leaf.size]


def _hash(x: Array) -> Array:
    """The sum of all words of an array, each times an odd number of its own."""
    x = numbers_of(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32).reshape(-1)
    # A product with an odd number is another one for each word, modulo 2^32.
    odd = jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(0x9E3779B2) | jnp.uint32(1)
    return jnp.sum(words * odd, dtype=jnp.uint32)


def _message(
    different: np.ndarray, names: list[str], devices: list[str], done: int
) -> str:
    who = {int(worker) for worker, _ in different}
    listed = [
        f"  worker {worker} ({devices[worker]}): {names[leaf]}\n"
        for worker, leaf in different
    ]
    more = f"  and {len(listed) - 5} more\n" if len(listed) > 5 else ""
    return (
        f"after step {done} the copies of {len(who)} of {len(devices)} workers differ "
        f"from the others', in what all of them share:\n{''.join(listed[:5])}{more}"
        "A device is broken, or a program gives other bits on one of them: see "
        "--config.deterministic. The same command goes on from the checkpoint before."
    )


def initial_params(
    plan: RunPlan, state: TrainState, start: int, frame: Frame
) -> Tree | None:
    """The parameters with which a run began, on the host; None where they are lost.

    They are in no checkpoint: they follow from the seed, or from another run's.

    Args:
      plan: of the run.
      state: at the step `start`.
      start: the step from which on the run goes on, 0 for a new run.
      frame: of the run.
    """
    config = plan.config
    if not start:
        # Copies: what is only seen here could not be donated to the first step.
        return jax.tree.map(np.array, params_on_host(state))
    if not config.init_from:
        return jax.device_get(initial_variables(plan.task, config.seed).params)
    noted = read_json(frame.folder / "environment.json").get("init_from", {})
    source = (
        f"{checkpoints.parsed_source(config.init_from)[0]}@{noted.get('step', 'last')}"
    )
    try:
        return checkpoints.read_start(source, plan).variables.params
    except UserError as error:
        frame.show.say(f"WARNING: no distance from the start any more: {error}")
        return None


def params_on_host(state: TrainState) -> Tree:
    """The parameters of the first worker that this process has."""
    params = parallel.to_host(state.params)
    if not is_per_worker(params):
        return params
    return jax.tree.map(lambda x: x[0], params.value)


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
