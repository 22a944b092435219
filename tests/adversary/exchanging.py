"""The laws of an exchange with its memory, and of the loops that it runs in."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core.specs import calls
from jaxcomp.core.trees import spec_of, widen
from jaxcomp.core.types import Exchange
from jaxcomp.core.types import worst as worst_of
from jaxcomp.exchanges.overlap import WHOLE
from jaxcomp.transforms.distributed import step_key
from jaxcomp.transforms.make import compressor_for
from jaxcomp.transforms.nonfinite import all_finite, applied_if, instead_of_bad
from tests.adversary import loops
from tests.adversary.draw import Program
from tests.adversary.verdicts import (
    BAD,
    STEPS,
    Laws,
    flat,
    gradients,
    one_of,
    precision,
    told_nan,
    with_events,
)

leaves = jax.tree.leaves
UNBIASED = ("gather", "simulated", "two_phase")  # where their compressor is


def build(program: Program, axis: Any = "workers") -> Exchange:
    used = compressor_for(program.method, program.compressor)
    return jaxcomp.make_exchange(
        *(program.method, used, program.memory, program.scope, axis),
        policy=program.policy,
        overlap=program.overlap,
    )


class Walk(NamedTuple):
    """What happened in each step; trees are means over the workers, in float32."""

    mean: Any
    sent: Any
    held: Any
    lost: Any  # of each leaf, |given - sent|^2 over all workers
    applied: Any
    info: Any  # of each worker


def wide_mean(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), widen(tree))


def walker(whole: Exchange, workers: int, state: Any) -> Callable:
    """(state, gradients, seed) -> `Walk`, on simulated workers."""
    axes, cut = parallel.axes(state), whole.cut or WHOLE

    def of_worker(state: Any, tree: Any, key: Any) -> Any:
        shown = cut.map(lambda part: instead_of_bad(part, all_finite(part)), tree)
        result = whole.average(shown, state, key)
        return result.mean, result.sent, result.state, result.info

    average = jax.vmap(
        of_worker,
        in_axes=(axes, 0, None),
        out_axes=(None, 0, axes, 0),
        axis_name="workers",
        axis_size=workers,
    )

    def step(carry: Any, tree: Any) -> Any:
        state, count, seed = carry
        key = step_key(jax.random.key(seed), None, count, tree)
        mean, sent, new, info = average(state, tree, key)
        applied = all_finite(mean)
        state = applied_if(applied, new, state)
        held = None
        if whole.held is not None:
            held = wide_mean(jax.vmap(whole.held, (axes,), axis_size=workers)(state))
        lost = jax.tree.map(
            lambda g, s: jnp.sum(jnp.square(jnp.abs(g - s))), widen(tree), widen(sent)
        )
        walk = Walk(mean, wide_mean(sent), held, lost, applied, info)
        return (state, count + 1, seed), walk

    @jax.jit
    def walk(state: Any, trees: Any, seed: Any) -> Walk:
        return jax.lax.scan(step, (state, jnp.int32(0), seed), trees)[1]

    return lambda *args: jax.tree.map(np.asarray, walk(*args))


def check_exchange(program: Program, laws: Laws) -> None:
    """Everything that is known of an exchange and its memory."""
    workers, exchange = program.workers, build(program)
    trees = with_events(program, workers)
    crew = parallel.setup(workers, "vmap")
    state = parallel.spread(exchange.init(one_of(trees)), crew)
    walk = walker(exchange, workers, state)
    found = walk(state, trees, 0)
    bare = build(program._replace(memory="none")) if exchange.keeper else exchange
    check_steps(laws, program, exchange, trees, found)
    if all(leaf.dtype == "float32" for leaf in program.tree):
        check_reports(laws, exchange, trees, found)
        check_scale(laws, program, found, walk(state, small(trees), 0))
    constant = np.where(np.arange(STEPS) > 0, 1, 0)

    def still(x: Any) -> Any:
        factor = constant.reshape((STEPS,) + (1,) * (x.ndim - 1)).astype(x.dtype)
        return np.asarray(x)[:1] * factor

    same = jax.tree.map(still, trees)
    calm = walk(state, same, 1)
    check_calm(laws, program, exchange, bare, same, calm)
    if exchange.keeper is None and exchange.momentum is None and exchange.lawful:
        walks = [calm, *(walk(state, same, seed) for seed in range(2, 9))]
        check_errors(laws, program, bare, same, walks)
    mapped_loop(laws, program, exchange, trees, found)


def check_steps(
    laws: Laws, program: Program, exchange: Exchange, trees: Any, walk: Walk
) -> None:
    """Conservation, dtypes, what is not finite, and what arrives of nothing."""
    spec = jax.tree.map(lambda x: (x.shape[2:], x.dtype), trees)
    arrives = jax.tree.map(lambda x: (x.shape[1:], x.dtype), walk.mean)
    laws.check("dtypes and shapes", spec == arrives, f"{arrives} for {spec}")
    full = any(x.size for x in leaves(trees))
    expected = np.arange(STEPS) != BAD if full else np.ones(STEPS, bool)
    given = flat(trees, 2)
    if not told_nan(program):
        laws.check("a NaN is seen", not walk.applied[BAD] or not full, "hidden")
        found = f"steps {np.flatnonzero(walk.applied != expected)}"
        laws.check("finite stays finite", (walk.applied == expected).all(), found)
    ok = walk.applied
    arrived = np.where(ok[:, None], flat(walk.mean, 1), 0)
    if not exchange.lawful:
        laws.check("votes", np.abs(arrived).max(initial=0) <= 1, "not a sign")
        return
    kept = flat(walk.held, 1) if walk.held is not None else np.zeros_like(arrived)
    laws.check("what is owed is finite", np.isfinite(kept).all())
    size = np.abs(arrived).max(initial=0) + np.abs(kept).max(initial=0)
    size = max(size, np.abs(np.where(np.isfinite(given), given, 0)).max(initial=0))
    rounding = precision(program)
    own = exchange.keeper is None
    if own or "server_feedback=True" not in program.method:
        change = np.diff(kept, axis=0, prepend=0) if own else 0
        sent = np.where(ok[:, None], flat(walk.sent, 1), 0)
        worst = np.abs(arrived - sent + change).max(initial=0)
        laws.check("mean of sent", worst <= rounding * size, f"{worst} of {size}")
    handed = handed_over(program, np.where(ok[:, None], given.mean(axis=1), 0), ok)
    if exchange.keeper and handed is not None:
        total = np.cumsum(handed, axis=0)
        worst = np.abs(np.cumsum(arrived, axis=0) + kept - total).max(initial=0)
        size = max(size, np.abs(total).max(initial=0))
        laws.check("conservation", worst <= 10 * rounding * size, f"{worst} of {size}")


def check_reports(laws: Laws, exchange: Exchange, trees: Any, walk: Walk) -> None:
    """What is reported as lost, where it follows from what was sent."""
    if exchange.keeper or exchange.momentum or not exchange.lawful:
        return
    lost = np.sqrt(sum(leaves(walk.lost), np.zeros(STEPS)))
    said = np.sqrt(np.square(walk.info.unsent_norm.astype(float)).sum(axis=1))
    given = np.sqrt(np.square(flat(trees, 1)).sum(axis=1))
    good = walk.applied & np.isfinite(given)
    worst = (np.abs(lost - said) / np.where(given > 0, given, 1))[good].max(initial=0)
    laws.check("reports are right", worst <= 1e-3, f"{worst} of what is given")


POWER = np.float32(2.0**-9)


def small(trees: Any) -> Any:
    return jax.tree.map(lambda x: x * POWER, trees)


def check_scale(laws: Laws, program: Program, walk: Walk, less: Walk) -> None:
    """A factor that is a power of two changes no digit, where nothing has a unit."""
    text = " ".join((program.method, program.compressor, program.memory))
    text += str(program.policy)
    if any(word in text for word in ("threshold", "clip", "cast", "vote", "scaled=F")):
        return
    good = walk.applied & less.applied
    a = jax.tree.map(lambda x: x[good], walk.mean)
    b = jax.tree.map(lambda x: x[good] / POWER, less.mean)
    laws.same("powers of two change nothing", b, a, 1e-4)


def waits(program: Program) -> bool:
    """Whether a threshold that does not follow the gradient may never be reached."""
    text = program.compressor + str(program.policy) + program.method
    return re.search(r"(?<!_)threshold", text) is not None


def handed_over(program: Program, given: Any, ok: Any) -> Any:
    """What a memory makes of gradients [steps, elements]; None: it is not linear."""
    names = [call for call in calls(program.memory) if call.name != "none"]
    used = {call.name: call.kwargs for call in names}
    if "decay" in used.get("error_feedback", {}):
        return None
    if list(used) == ["error_feedback"]:
        return given
    beta = blend = before = after = 0.0
    if list(used) == ["local_momentum", "error_feedback"]:
        beta = used["local_momentum"].get("beta", 0.9)
        blend = used["local_momentum"].get("blend", beta)
        before, after = 1 - beta, 1 - blend
    elif list(used) == ["dgc"] and not {"clip"} & set(used["dgc"]):
        if used["dgc"].get("masking", True):
            return None
        beta = used["dgc"].get("momentum", 0.9)
        blend, before, after = beta, 1.0, 1.0
        if used["dgc"].get("nesterov", False):
            blend, before, after = beta, beta, 1 + beta
    else:
        return None
    old, rows = np.zeros_like(given[0]), []
    for row, applied in zip(given, ok, strict=True):
        rows.append((blend * old + after * row) * applied)
        old = beta * old + before * row if applied else old
    return np.stack(rows)


def joins(program: Program) -> bool:
    """Whether several tensors may be one vector."""
    return program.scope.startswith(("whole", "bucketed")) or "scope" in program.scope


def check_calm(
    laws: Laws,
    program: Program,
    exchange: Exchange,
    bare: Exchange,
    same: Any,
    walk: Walk,
) -> None:
    """A step of zeros, then the same gradient for ever."""
    zero = [np.abs(flat(x[0])).max(initial=0) for x in leaves(walk.mean)]
    laws.check("zero stays zero", max(zero, default=0) == 0, f"arrived: {zero}")
    if walk.held is not None:
        owed = np.abs(flat(jax.tree.map(lambda x: x[0], walk.held))).max(initial=0)
        laws.check("zero stays zero", owed == 0, f"owed: {owed}")
    if not exchange.lawful or not walk.applied.all():
        return
    whole = jax.tree.map(lambda x: np.asarray(widen(x[1:]).mean(axis=1)), same)
    given, arrived = leaves(whole), leaves(walk.mean)
    spec = spec_of(jax.tree.map(lambda x: x[0, 0], same))
    free = "allow=True" in program.memory + program.method
    ratio = sum(
        np.vdot(flat(g), flat(a[1:])) for g, a in zip(given, arrived, strict=True)
    )
    size = sum(np.square(flat(g)).sum() for g in given)
    if size and not free:
        least = 0 if exchange.keeper else -1
        laws.check("progress", least <= ratio / size, f"{ratio / size}")
    if exchange.keeper is None or free or not size:
        return
    bounds = bare.contraction(spec)
    for delta, g, a in zip(bounds, given, arrived, strict=True):
        kept = (
            delta or "error_feedback" in exchange.keeper
        )  # if not, what is small waits
        alone = kept and not joins(program) and not exchange.momentum
        alone = alone and not waits(program)
        if np.abs(flat(g)).max(initial=0) and alone:
            dead = "nothing of a tensor arrives"
            laws.check(dead, np.abs(flat(a)).max(initial=0) > 0, f"shape {g.shape[1:]}")
    plain = "error_feedback" in exchange.keeper and exchange.momentum is None
    if not plain or walk.held is None:
        return
    owed, grads = leaves(walk.held), leaves(same)
    if joins(program):  # the bound is that of all tensors of a group together
        bounds = [worst_of(bounds)]
        owed, grads = [flat(walk.held, 1)], [flat(same, 1)]
    for delta, g, h in zip(bounds, grads, owed, strict=True):
        if delta and np.size(g):
            length = np.linalg.norm(flat(g[1]))
            most = max(np.linalg.norm(flat(x)) for x in h)
            limit = 3 * 2 * np.sqrt(1 - delta) / delta * length + 1e-4 * length
            if delta * STEPS >= 3:  # long enough for it to have stopped growing
                middle = np.linalg.norm(flat(h[STEPS // 2]))
                limit = min(limit, 2 * middle + 3 * length)
            laws.check("residual is bounded", most <= limit, f"{most} > {limit}")


def check_errors(
    laws: Laws, program: Program, exchange: Exchange, same: Any, walks: list[Walk]
) -> None:
    """Contraction, and no bias, over some hundred keys."""
    of_hosts = "hierarchical" in program.method  # who sends a part loses it for all
    if of_hosts or not all(walk.applied.all() for walk in walks):
        return
    spec = spec_of(jax.tree.map(lambda x: x[0, 0], same))
    bounds = exchange.contraction(spec)
    given = [np.square(flat(x[1])).sum() for x in leaves(same)]
    lost = [[x[1:] for x in leaves(walk.lost)] for walk in walks]
    if joins(program):  # as above
        bounds, given = [worst_of(bounds)], [sum(given)]
        lost = [[sum(row)] for row in lost]
    for i, (delta, size) in enumerate(zip(bounds, given, strict=True)):
        if delta and size:
            parts = np.concatenate([row[i] for row in lost]) / size
            chance = 6 * parts.std() / np.sqrt(parts.size) + precision(program)
            found = f"{parts.mean()} > 1 - {delta}"
            laws.check("contraction", parts.mean() <= 1 - delta + chance, found)
    compressor = compressor_for(program.method, program.compressor)
    name = calls(program.method)[0].name
    if compressor is None or program.policy or name not in UNBIASED:
        return
    if jaxcomp.make_compressor(compressor).unbiased:
        target = flat(jax.tree.map(lambda x: widen(x[1]).mean(axis=0), same))
        rows = np.concatenate([flat(w.mean, 1)[1:] for w in walks]) - target
        along = rows @ target
        chance = 7 * along.std() / np.sqrt(len(rows))
        chance += precision(program) * np.square(target).sum()
        laws.check("no bias", abs(along.mean()) <= chance, f"{along.mean()} > {chance}")


# --- Mapped loops ---------------------------------------------------------------------


def mapped_loop(
    laws: Laws, program: Program, exchange: Exchange, trees: Any, walk: Walk
) -> None:
    """The same steps under the mapper, a checkpoint, and another number of workers."""
    one = one_of(trees)
    loop, bad = loop_with(program, one, program.workers), not walk.applied[BAD]
    exact = program.method == "exact"
    found, state = loops.follow(
        *(laws, program, loop, trees, walk.mean), alike=True, bad=bad, lossless=exact
    )
    if not program.resize:
        return
    count = loops.new_count(program)
    new = loop_with(program, one, count)
    method = build(program, loops.axis_of(program))
    on_mesh = program.mapper == "data_parallel"
    params = loops.params_of(program, one, loops.mesh_of(count), ()) if on_mesh else one
    state = loops.resized(laws, state, new.state, method, lambda _: params)
    more = gradients(program, count, 1, program.seed + 1)
    rows = []
    for i in range(STEPS):
        tree = jax.tree.map(lambda x, i=i: x[0] * x.dtype.type(i == 0), more)
        mean, state = new.step(state, tree)
        rows.append(flat(mean if on_mesh else jax.tree.map(lambda x: x[0], mean)))
    if not told_nan(program):
        laws.check("finite after a resize", np.isfinite(rows).all())
    elif not np.isfinite(rows).all():
        return  # an overflow is a NaN, as it was told
    keeps = exchange.keeper or "server_feedback=True" in program.method
    is_plain = handed_over(program, np.zeros((1, 1)), [True]) is not None
    quiet = not exchange.momentum and not waits(program) and not np.any(rows[-5:])
    if keeps and is_plain and quiet:
        good = walk.applied[: len(flat(found, 1))]
        given = flat(trees, 2)[: len(good)].mean(axis=1)[good].sum(axis=0)
        given = given + flat(more, 2)[0].mean(axis=0)
        sums = np.cumsum([*flat(found, 1)[good], *rows], axis=0)
        worst = np.abs(sums[-1] - given).max(initial=0)
        limit = 20 * precision(program) * np.abs(sums).max(initial=0)
        laws.check("all arrives after a resize", worst <= limit, f"{worst} > {limit}")


def loop_with(program: Program, one: Any, workers: int) -> loops.Loop:
    """The loop of the program's exchange, for so many workers."""
    exchange = build(program, loops.axis_of(program))
    if program.mapper == "data_parallel":
        return sharded_loop(program, exchange, one, workers)
    crew = loops.crew_of(program, workers)
    mean = jaxcomp.pmean(exchange, seed=0)
    state = parallel.spread(mean.init(one), crew)
    return loops.loop_of(program, crew, lambda state, tree: mean(tree, state), state)


def sharded_loop(
    program: Program, exchange: Exchange, one: Any, workers: int
) -> loops.Loop:
    mesh = loops.mesh_of(workers)
    params = loops.params_of(program, one, mesh, ())
    dp = jaxcomp.data_parallel(exchange, mesh)

    def own(params: Any, rows: Any) -> Any:
        return jnp.float32(0), jax.tree.map(lambda x: x[0], rows)

    mapped = jax.jit(dp.averaged(own))
    return loops.Loop(dp.init(params), lambda state, x: mapped(state, params, x)[1:])
