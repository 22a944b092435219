"""The laws of whole optimisers, in a chain that skips bad steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core.specs import calls
from jaxcomp.transforms import optimizers
from tests.adversary import loops
from tests.adversary.draw import Leaf, Program
from tests.adversary.exchanging import build
from tests.adversary.verdicts import BAD, Laws, flat, gradients, told_nan, with_events

RATE = 0.1


def chain(program: Program, axis: Any = "workers") -> Any:
    exchange = build(program._replace(memory="none"), axis)
    [call] = calls(program.memory)
    tx = getattr(optimizers, call.name)(RATE, exchange, seed=0, **call.kwargs)
    return exchange, jaxcomp.skip_nonfinite(tx, exchange=exchange)


def check_optimizer(program: Program, laws: Laws) -> None:
    """Parameters without a gradient, bad steps, and the loop under the mapper."""
    if program.mapper == "data_parallel":
        program = program._replace(mapper="shard_map")
    dead = Leaf("dead", (5,), program.tree[0].dtype)
    names = [leaf.name or "w" for leaf in program.tree]
    pairs = zip(names, program.tree, strict=True)
    tree = tuple(leaf._replace(cut=None, name=name) for name, leaf in pairs)
    program = program._replace(tree=(*tree, dead))
    workers = program.workers
    trees = with_events(program, workers)
    given = trees["dead"]
    trees["dead"] = np.where(np.isfinite(given), np.zeros_like(given), given)
    start = jax.tree.map(lambda x: jnp.ones(x.shape[2:], x.dtype), trees)
    _, tx = chain(program)

    def of_worker(trees: Any) -> Any:
        def step(carry: Any, tree: Any) -> Any:
            updates, state = tx.update(tree, carry[1], carry[0])
            params = optax.apply_updates(carry[0], updates)
            return (params, state), params

        return jax.lax.scan(step, (start, tx.init(start)), trees)[1]

    walk = jax.vmap(of_worker, 1, None, axis_name="workers", axis_size=workers)
    models = jax.tree.map(np.asarray, jax.jit(walk)(trees))
    x = flat(models, 1)
    if not told_nan(program):
        laws.check("finite stays finite", np.isfinite(x).all())
        laws.check("a bad step changes nothing", (x[BAD] == x[BAD - 1]).all())
    if "weight_decay" not in program.memory:
        check_dead(laws, program, trees, models)
    mapped_loop(laws, program, trees, start, models)


def check_dead(laws: Laws, program: Program, trees: Any, models: Any) -> None:
    """What never has a gradient moves no further than what has one."""
    moved = np.abs(flat(models, 1) - 1).max(axis=0)
    live = flat(jax.tree.map(lambda x: (x != 0).any(axis=(0, 1)), trees))
    if live.size == moved.size:  # no complex numbers, which are two
        most = 3 * moved[live > 0].max(initial=0) + 10 * RATE * program.scale + RATE
        worst = moved[live == 0].max(initial=0)
        law = "who has no gradient stays"
        laws.check(law, worst <= most, f"{worst} > {most}")
    stays = max(
        float(np.abs(x - 1).max(initial=0)) for x in jax.tree.leaves(models["dead"])
    )
    is_bad = not np.isfinite(trees["dead"]).all()
    if program.scope in ("per_leaf", "policy") and not is_bad:
        laws.check("a tensor without gradient stays", stays == 0, f"{stays}")


def mapped_loop(
    laws: Laws, program: Program, trees: Any, start: Any, models: Any
) -> None:
    """The same weights under the mapper; a checkpoint; another number of workers."""
    exchange, tx = chain(program, loops.axis_of(program))

    def step(state: Any, tree: Any) -> Any:
        updates, new = tx.update(tree, state[1], state[0])
        params = optax.apply_updates(state[0], updates)
        return params, (params, new)

    def loop_with(workers: int) -> Any:
        crew = loops.crew_of(program, workers)
        first = parallel.spread((start, tx.init(start)), crew)
        return loops.loop_of(program, crew, step, first)

    loop, bad = loop_with(program.workers), not told_nan(program)
    _, state = loops.follow(
        *(laws, program, loop, trees, models), alike=True, bad=bad, scale=1.0
    )
    if program.resize:
        new = loop_with(loops.new_count(program))
        after = loops.resized(laws, state, new.state, exchange, lambda state: state[0])
        more = gradients(program, loops.new_count(program), 1)
        after, _ = new.step(after, jax.tree.map(lambda x: x[0], more))
        laws.check("finite after a resize", np.isfinite(flat(after)).all())
