"""The laws of gossip and of local training."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core.specs import calls
from jaxcomp.core.types import Mixer, PerWorker
from jaxcomp.mixers import local
from jaxcomp.transforms.make import compressor_for
from tests.adversary import loops
from tests.adversary.draw import Program
from tests.adversary.verdicts import Laws, flat, gradients, precision

STEPS = 150
leaves = jax.tree.leaves
# Whatever they compress, and however far they step, the mean model stays.
MEAN_KEEPERS = ("choco", "choco_overlapped", "deep_squeeze", "d_psgd")
# They compress models, or what grows with the step, so that agreement is not kept.
RESTLESS = ("deep_squeeze", "ecd_psgd")


class Run(NamedTuple):
    """A state as a loop has it: all of it is each worker's own."""

    params: Any
    state: Any


def build(program: Program, workers: int, axis: Any = "workers") -> Mixer:
    plan = {"scope": program.scope, "policy": program.policy, "axis": axis}
    if calls(program.method)[0].name in local.REGISTRY:
        return jaxcomp.make_mixer(
            program.method,
            exchange=program.graph,
            compressor=compressor_for(program.graph, program.compressor),
            memory=program.memory,
            **plan,
        )
    graph = (program.method, program.graph, workers)
    return jaxcomp.make_mixer(*graph, compressor=program.compressor, **plan)


def check_mixer(program: Program, laws: Laws) -> None:
    """Everything that is known of a mixer."""
    workers = program.workers
    link = jaxcomp.mixing(build(program, workers), seed=0)
    healthy = optax.apply_if_finite(optax.identity(), STEPS)
    tx = optax.chain(healthy, link)

    def step(carry: Any, update: Any) -> Any:
        updates, state = tx.update(update, carry[1], carry[0])
        params = plus(carry[0], updates)
        return (params, state), params

    def of_worker(start: Any, updates: Any) -> Any:
        return jax.lax.scan(step, (start, tx.init(start)), updates)[1]

    mapped = jax.vmap(of_worker, (0, 1), 1, axis_name="workers")
    walk = jax.jit(mapped)
    start, noise = one_step(program, workers, 0), updates_of(program, workers)
    quiet = jax.tree.map(jnp.zeros_like, noise)
    check_quiet(laws, program, start, walk(start, quiet))
    same = jax.tree.map(lambda x: jnp.stack([x[0]] * workers), start)
    check_agreed(laws, program, same, walk(same, quiet))
    check_bad(laws, program, start, noise, walk)
    mapped_run(laws, program, start, noise, walk(start, noise))


def check_bad(laws: Laws, program: Program, start: Any, noise: Any, walk: Any) -> None:
    """A worker with a bad gradient has an update of zero; the others do not notice."""
    who = program.seed % program.workers

    def with_value(value: float) -> Any:
        return jax.tree.map(lambda x: x.at[2, who].set(value), noise)

    bad, zero = walk(start, with_value(jnp.nan)), walk(start, with_value(0))
    laws.same("a bad gradient is one worker's", bad, zero, 0)


def one_step(program: Program, workers: int, seed: int) -> Any:
    return jax.tree.map(lambda x: x[0], gradients(program, workers, 1, seed))


def updates_of(program: Program, workers: int) -> Any:
    return gradients(program._replace(scale=0.1 * program.scale), workers, STEPS, 1)


def plus(params: Any, updates: Any) -> Any:
    """`optax.apply_updates`, of which strict promotion refuses narrow params."""
    return jax.tree.map(
        lambda p, u: (p.astype(u.dtype) + u).astype(p.dtype), params, updates
    )


def facts(program: Program) -> tuple[str, bool, bool]:
    """Name of the mixer, whether it is local training, whether nothing gets lost."""
    name = calls(program.method)[0].name
    is_local = name in local.REGISTRY
    lossless = program.compressor == "none" and not program.policy
    if is_local:
        lossless = program.graph == "exact" and program.memory == "none"
    return name, is_local, lossless


def check_quiet(laws: Laws, program: Program, start: Any, models: Any) -> None:
    """Workers that start apart and learn nothing."""
    name, is_local, lossless = facts(program)
    shapes = [[(x.shape, x.dtype) for x in leaves(t)] for t in (start, models)]
    kept = [((STEPS, *s), d) for s, d in shapes[0]] == shapes[1]
    laws.check("dtypes and shapes", kept, f"{shapes}")
    x, first = flat(models, 2), flat(start, 1)
    size, rounding = np.abs(first).max(initial=0), precision(program)
    keeps = name in MEAN_KEEPERS or lossless and (not is_local or name == "local_sgd")
    if keeps and np.isfinite(x).all():
        drift = np.abs(x.mean(axis=1) - first.mean(axis=0)).max(initial=0)
        most = max(size, np.abs(x).max(initial=0))
        law = "zero updates keep the mean model"
        laws.check(law, drift <= rounding * most, f"{drift} of {most}")
    free = "allow=True" in program.method + program.memory
    number = "gamma" not in program.method or "'" not in program.method
    if (free or number) and not lossless:
        return  # nothing is promised of how workers agree
    laws.check("gossip stays finite", np.isfinite(x).all())
    apart = [np.linalg.norm(y - y.mean(axis=0)) for y in (first, x[-1])]
    laws.check(
        "workers come together",
        apart[1] <= (1 + rounding) * apart[0] if apart[0] > size / 100 else True,
        f"{apart[0]} to {apart[1]}",
    )
    if lossless and name in ("choco", "d_psgd", "stale_hypercube", "dcd_psgd"):
        limit = 0.9 * apart[0] + 4 * rounding * size * np.sqrt(first.size)
        found = f"{apart[0]} to {apart[1]}"
        if program.workers <= 6 and "gamma" not in program.method:
            laws.check("workers agree in the end", apart[1] <= limit, found)


def check_agreed(laws: Laws, program: Program, start: Any, models: Any) -> None:
    """Workers that agree and learn nothing stay where they are, to the bit."""
    name, _, lossless = facts(program)
    if name in RESTLESS and not lossless:
        return
    moved = np.abs(flat(models, 1) - flat(start)).max(initial=0)
    size = np.abs(flat(start)).max(initial=0)
    limit = precision(program) * size if name in RESTLESS else 0
    laws.check("who agrees and learns nothing stays", moved <= limit, f"{moved}")


def check_known(laws: Laws, program: Program, run: Run) -> None:
    """What a worker knows of its neighbours is what they have."""
    name, _, lossless = facts(program)
    fields = {"choco": "public", "choco_overlapped": "public", "dcd_psgd": None}
    [found] = jaxcomp.find_states(run.state)
    state = getattr(found.exchange, "value", found.exchange)
    state = getattr(state, "inner", state)  # of narrow models
    if name in fields:
        models = run.params.value if fields[name] is None else state.public
        graph = jaxcomp.topology(program.graph, program.workers)
        x = flat(models, 1)
        pull = graph.rounds[0].matrix @ x - x
        worst = np.abs(flat(state.pull, 1) - pull).max(initial=0)
        most = np.abs(x).max(initial=0)
        law = "what is known of the neighbours"
        laws.check(law, worst <= precision(program) * most, f"{worst} of {most}")


# --- Mapped loops ---------------------------------------------------------------------


def mapped_run(
    laws: Laws, program: Program, start: Any, noise: Any, models: Any
) -> None:
    """The same models under the mapper; a checkpoint; another number of workers."""
    loop = loop_with(program, start, program.workers)
    _, _, lossless = facts(program)
    for name in ("tuned", "fragments"):  # depend on sizes
        lossless = lossless and name not in program.method
    _, run = loops.follow(
        *(laws, program, loop, noise, models), alike=False, bad=False, lossless=lossless
    )
    if program.mapper == "data_parallel":
        return  # nothing marks the state of `decentralised`: it stays with its workers
    if np.isfinite(flat(run.params)).all():
        check_known(laws, program, run)
    if program.resize:
        resize(laws, program, run)


def loop_with(program: Program, start: Any, workers: int) -> loops.Loop:
    """The loop of the program's mixer, for so many workers."""
    mixer = build(program, workers, loops.axis_of(program))
    if program.mapper == "data_parallel":
        return sharded_loop(program, mixer, start, workers)
    crew = loops.crew_of(program, workers)
    link = jaxcomp.mixing(mixer, seed=0)

    def first(params: Any) -> Any:
        return Run(PerWorker(params), PerWorker(link.init(params)))

    def step(run: Any, update: Any) -> Any:
        updates, state = link.update(update, run.state.value, run.params.value)
        params = plus(run.params.value, updates)
        return params, Run(PerWorker(params), PerWorker(state))

    init = parallel.map_step(first, crew, in_axes=(0,), out_axes=0)
    return loops.loop_of(program, crew, step, init(parallel.place(start, crew, 0)))


def sharded_loop(
    program: Program, mixer: Mixer, start: Any, workers: int
) -> loops.Loop:
    mesh = loops.mesh_of(workers)
    tx = jaxcomp.decentralised(mixer, mesh).chain(optax.identity())
    models = loops.params_of(program, start, mesh, ("data",))
    like = jax.tree.map(lambda x: x.sharding, models)

    @jax.jit
    def step(run: Any, update: Any) -> Any:
        updates, state = tx.update(update, run.state, run.params)
        models = plus(run.params, updates)
        return models, Run(models, state)

    first = Run(models, tx.init(models))
    return loops.Loop(
        first, lambda run, update: step(run, jax.device_put(update, like))
    )


def resize(laws: Laws, program: Program, run: Any) -> None:
    """The mean model stays, and training goes on."""
    count = loops.new_count(program)
    start = one_step(program, count, 2)
    new, method = loop_with(program, start, count), build(program, count)
    after = loops.resized(laws, run, new.state, method, lambda run: run.params)
    means = [flat(x.params, 1).mean(axis=0) for x in (run, after)]
    size = np.abs(flat(run.params)).max(initial=0)
    worst = np.abs(means[0] - means[1]).max(initial=0)
    law = "a resize keeps the mean model"
    if np.isfinite(size):
        laws.check(law, worst <= precision(program) * size, f"{worst} of {size}")
    for _ in range(3):
        _, after = new.step(after, jax.tree.map(np.zeros_like, start))
    is_finite = np.isfinite(flat(after.params)).all()
    laws.check("finite after a resize", is_finite or not np.isfinite(size))
