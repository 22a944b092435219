"""The laws of an exchange with its memory, and of the loops that it runs in."""

import functools
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.base import Exchange
from jaxcomp.lanes import Lanes
from jaxcomp.link_state import step_key
from jaxcomp.make import compressor_for
from jaxcomp.nonfinite import all_finite, applied_if, instead_of_bad
from jaxcomp.overlap.cuts import make_cut
from jaxcomp.parallel.placing import by_axis
from jaxcomp.specs import calls
from jaxcomp.trees import spec_of, widen
from tests.adversary.draw import Program
from tests.adversary.verdicts import Laws, flat

__all__ = [
    "SHORT",
    "axis_of",
    "build",
    "check_bytes",
    "check_copies",
    "check_exchange",
    "counted",
    "crew_of",
    "gradients",
    "mesh_of",
    "nested",
    "params_of",
    "restored",
    "unclocked",
    "with_events",
]

STEPS = 50
SHORT = 6  # of which a mapped loop makes a step at a time
ZERO, BAD = 2, 3  # steps in which all gradients are 0, and in which one is not finite
QUIET = 25  # from here on gradients are 0
leaves = jax.tree.leaves
UNBIASED = ("gather", "simulated", "two_phase")  # where their compressor is


def nested(values: dict[str, Any]) -> Any:
    """A tree from names with slashes; a tensor without a name is the whole tree."""
    if "" in values:
        return values[""]
    result: dict[str, Any] = {}
    for name, x in values.items():
        *folders, last = name.split("/")
        node = functools.reduce(lambda n, f: n.setdefault(f, {}), folders, result)
        node[last] = x
    return result


def gradients(program: Program, workers: int, steps: int, seed: int = 0) -> Any:
    """[steps, workers, ...], heavy-tailed, with the dead rows of the program."""
    rng = np.random.default_rng(seed)

    def of(shape: tuple[int, ...], dtype: str) -> jax.Array:
        def draw() -> np.ndarray:
            return rng.standard_t(4, size=(steps, workers, *shape)) + 0.5

        x = draw() + 1j * draw() if "complex" in dtype else draw()
        if shape and program.dead:
            axis, size = (-1, shape[-1]) if program.dead == "columns" else (2, shape[0])
            first = {"first": 0, "middle": 1}.get(program.dead, size - 2)
            places = range(max(first, 0), min(first + 2, size - 1))
            moved = np.moveaxis(x, axis, 0)
            moved[list(places)] = 0
        return jnp.asarray(program.scale * x, dtype)

    return nested({x.name: of(x.shape, x.dtype) for x in program.tree})


def build(program: Program, axis: Any = "workers") -> Exchange:
    used = compressor_for(program.method, program.compressor)
    return jaxcomp.make_exchange(
        *(program.method, used, program.memory, program.scope, axis),
        policy=program.policy,
    )


class Walk(NamedTuple):
    """What happened in each step; trees are means over the workers, in float32."""

    mean: Any
    sent: Any
    held: Any
    lost: Any  # of each leaf, |given - sent|^2 over all workers
    applied: Any
    state: Any
    info: Any  # of each worker


def wide_mean(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), widen(tree))


def walker(exchange: Exchange, overlap: int, workers: int, state: Any) -> Callable:
    """(state, gradients, first step, seed) -> `Walk`, on simulated workers."""
    whole = jaxcomp.overlapped(exchange, overlap)
    axes, cut = parallel.axes(state), make_cut(overlap, None)

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
        walk = Walk(mean, wide_mean(sent), held, lost, applied, state, info)
        return (state, count + 1, seed), walk

    @jax.jit
    def walk(state: Any, trees: Any, first: Any, seed: Any) -> Walk:
        return jax.lax.scan(step, (state, first, seed), trees)[1]

    return lambda *args: jax.tree.map(np.asarray, walk(*args))


def fresh(exchange: Exchange, overlap: int, one: Any, workers: int) -> Any:
    whole = jaxcomp.overlapped(exchange, overlap)
    return parallel.spread(whole.init(one), parallel.setup(workers, "vmap"))


def with_events(program: Program, workers: int) -> Any:
    """Random gradients: zero in one step, not finite in one, and zero at the end."""
    rng = np.random.default_rng(program.seed)
    trees = gradients(program, workers, STEPS, program.seed)
    quiet = np.isin(np.arange(STEPS), [ZERO, *range(QUIET, STEPS)])
    arrays, structure = jax.tree.flatten(trees)
    arrays = [np.array(x) for x in arrays]
    for x in arrays:
        x[quiet] = 0
    full = [i for i, x in enumerate(arrays) if x.size]
    if full:
        x = arrays[full[int(rng.integers(len(full)))]]
        place = (BAD, *(rng.integers(n) for n in x.shape[1:]))
        x[place] = [np.nan, np.inf][rng.integers(2)]
    return jax.tree.unflatten(structure, arrays)


def precision(program: Program) -> float:
    """What rounding may do to a mean, as a part of the largest element."""
    return max(8 * float(jnp.finfo(leaf.dtype).eps) for leaf in program.tree) + 2e-5


def check_exchange(program: Program, laws: Laws) -> None:
    """Everything that is known of an exchange and its memory."""
    workers, exchange = program.workers, build(program)
    trees = with_events(program, workers)
    one = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), trees)
    state = fresh(exchange, program.overlap, one, workers)
    walk = walker(exchange, program.overlap, workers, state)
    found = walk(state, trees, 0, 0)
    bare = build(program._replace(memory="none")) if exchange.keeper else exchange
    check_steps(laws, program, exchange, trees, found)
    if all(leaf.dtype == "float32" for leaf in program.tree):
        check_reports(laws, exchange, trees, found)
        check_scale(laws, program, found, walk(state, small(trees), 0, 0))
    constant = np.where(np.arange(STEPS) > 0, 1, 0)

    def still(x: Any) -> Any:
        factor = constant.reshape((STEPS,) + (1,) * (x.ndim - 1)).astype(x.dtype)
        return np.asarray(x)[:1] * factor

    same = jax.tree.map(still, trees)
    calm = walk(state, same, 0, 1)
    check_calm(laws, program, exchange, bare, same, calm)
    if exchange.keeper is None and exchange.momentum is None and exchange.lawful:
        walks = [calm, *(walk(state, same, 0, seed) for seed in range(2, 9))]
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
    if "nan" not in program.compressor + str(program.policy):
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
    joins = program.scope.startswith(("whole", "bucketed")) or "scope" in program.scope
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
    for g, a in zip(given, arrived, strict=True):
        if np.abs(flat(g)).max(initial=0) and not joins and not exchange.momentum:
            dead = "nothing of a tensor arrives"
            laws.check(dead, np.abs(flat(a)).max(initial=0) > 0, f"shape {g.shape[1:]}")
    plain = "error_feedback" in exchange.keeper and exchange.momentum is None
    if not plain or walk.held is None:
        return
    bounds = jaxcomp.overlapped(bare, program.overlap).contraction(spec)
    rows = zip(bounds, leaves(same), leaves(walk.held), strict=True)
    for delta, g, h in rows:
        if delta and np.size(g):
            length = np.linalg.norm(flat(g[1]))
            worst = max(np.linalg.norm(flat(x)) for x in h)
            limit = 3 * 2 * np.sqrt(1 - delta) / delta * length + 1e-4 * length
            if delta * STEPS >= 3:  # long enough for it to have stopped growing
                middle = np.linalg.norm(flat(h[STEPS // 2]))
                limit = min(limit, 1.5 * middle + 3 * length)
            laws.check("residual is bounded", worst <= limit, f"{worst} > {limit}")


def check_errors(
    laws: Laws, program: Program, exchange: Exchange, same: Any, walks: list[Walk]
) -> None:
    """Contraction, and no bias, over some hundred keys."""
    if not all(walk.applied.all() for walk in walks):
        return
    spec = spec_of(jax.tree.map(lambda x: x[0, 0], same))
    bounds = jaxcomp.overlapped(exchange, program.overlap).contraction(spec)
    given = [np.square(flat(x[1])).sum() for x in leaves(same)]
    lost = [[x[1:] for x in leaves(walk.lost)] for walk in walks]
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


class Loop(NamedTuple):
    """A loop as a user has it: a step at a time."""

    exchange: Exchange
    state: Any
    step: Callable[[Any, Any], tuple[Any, Any]]  # (state, gradients) -> (mean, state)
    shared: bool  # means have no axis of workers
    count: Any = None  # bytes as traced and as compiled


def axis_of(program: Program) -> Any:
    if program.mapper == "data_parallel":
        return "data"
    return Lanes("workers", "lanes") if program.per_device > 1 else "workers"


def crew_of(program: Program, workers: int) -> parallel.Workers:
    usual = program.mapper in parallel.MAPPERS
    mapper = program.mapper if usual else "shard_map"
    return parallel.setup(workers, mapper, per_device=program.per_device)


def loop_of(program: Program, one: Any, workers: int) -> Loop:
    exchange = build(program, axis_of(program))
    if program.mapper == "data_parallel":
        return sharded_loop(program, exchange, one, workers)
    crew = crew_of(program, workers)
    mean = jaxcomp.pmean(exchange, seed=0, overlap=program.overlap)
    state = parallel.spread(mean.init(one), crew)
    axes = parallel.axes(state)

    def averaged(tree: Any, state: Any) -> Any:
        return mean(tree, state)

    typed = program.mapper == "typed"
    mapped = parallel.map_step(
        averaged, crew, in_axes=(0, axes), out_axes=(0, axes), check_vma=typed
    )

    def step(state: Any, tree: Any) -> Any:
        return mapped(parallel.place(tree, crew, 0), state)

    def count() -> Any:
        rows = jax.tree.map(lambda x: jnp.zeros((workers, *x.shape), x.dtype), one)
        args = (parallel.place(rows, crew, 0), state)
        return counted(averaged, mapped, crew, args, (0, axes))

    return Loop(exchange, state, step, shared=False, count=count)


def counted(step: Any, mapped: Any, crew: Any, args: Any, axes: Any) -> Any:
    """Bytes of a step as traced and as compiled; results have the axes of arguments.

    Args:
      step: of one worker.
      mapped: the same over the workers.
      crew: the workers.
      args: of `mapped`.
      axes: a prefix tree of the arguments with 0 or None.
    """

    def of_one(axis: Any, x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape[1:] if axis == 0 else x.shape, x.dtype)

    on_device = parallel.on_device(step, crew, in_axes=axes, out_axes=axes)
    specs = parallel.specs_of_device(by_axis(of_one, axes, args), crew, axes)
    found = wire.traced_collectives(
        on_device, *specs, axis=crew.device_axis, workers=crew.devices
    )
    program = mapped.lower(*args).compile({"xla_backend_optimization_level": 0})
    return wire.collective_bytes(found), wire.collective_bytes(program)


def mesh_of(workers: int) -> Mesh:
    devices = np.array(jax.devices()[: 2 * workers]).reshape(workers, 2)
    return Mesh(devices, ("data", "model"))


def params_of(program: Program, tree: Any, mesh: Mesh, lead: tuple[str, ...]) -> Any:
    """The tree on the mesh, each tensor cut as the program says."""

    def placed(leaf: Any) -> NamedSharding:
        names: list[str | None] = [None] * len(leaf.shape)
        if leaf.cut is not None:
            names[leaf.cut] = "model"
        return NamedSharding(mesh, PartitionSpec(*lead, *names))

    return jax.device_put(tree, nested({x.name: placed(x) for x in program.tree}))


def sharded_loop(program: Program, exchange: Exchange, one: Any, workers: int) -> Loop:
    mesh = mesh_of(workers)
    params = params_of(program, one, mesh, ())
    whole = jaxcomp.overlapped(exchange, program.overlap)
    dp = jaxcomp.data_parallel(whole, mesh)

    def own(params: Any, rows: Any) -> Any:
        return jnp.float32(0), jax.tree.map(lambda x: x[0], rows)

    mapped = jax.jit(dp.averaged(own))

    def step(state: Any, tree: Any) -> Any:
        _, mean, state = mapped(state, params, tree)
        return mean, state

    return Loop(exchange, dp.init(params), step, shared=True)


def mapped_loop(
    laws: Laws, program: Program, exchange: Exchange, trees: Any, walk: Walk
) -> None:
    """The same steps under the mapper, a checkpoint, and another number of workers."""
    one = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), trees)
    loop = loop_of(program, one, program.workers)
    state, means = loop.state, []
    is_cut = any(leaf.cut is not None for leaf in program.tree)
    for i in range(SHORT):
        before = state
        mean, state = loop.step(state, jax.tree.map(lambda x, i=i: x[i], trees))
        check_copies(laws, (mean, state))
        if not loop.shared:
            rows = jax.tree.map(np.asarray, mean)
            alike = all(x.tobytes() == x[:1].tobytes() * len(x) for x in leaves(rows))
            laws.check("copies are equal", alike, f"means differ in step {i}")
            mean = jax.tree.map(lambda x: x[0], rows)
        means.append(jax.tree.map(np.asarray, mean))
        if i == BAD and not walk.applied[BAD]:
            law = "a bad step changes nothing"
            laws.same(law, unclocked(before), unclocked(state), 0)
        if i == SHORT - 2 and program.saved:
            state = restored(laws, state, loop.state)
    found = jax.tree.map(lambda *x: np.stack(x), *means)
    lossless = program.method == "exact"
    if not is_cut or lossless:
        good = walk.applied[:SHORT]
        a, b = (jax.tree.map(lambda x: x[:SHORT][good], t) for t in (found, walk.mean))
        law = "how params are cut" if is_cut else f"as under vmap: {program.mapper}"
        laws.same(law, a, b, 2 * precision(program))
    if program.counted and loop.count and program.mapper != "vmap":
        check_bytes(laws, loop)
    if program.resize:
        resized(laws, program, loop, state, trees, walk.applied, found)


def check_bytes(laws: Laws, loop: Any) -> None:
    traced, compiled = loop.count()
    law = "bytes as traced and as compiled"
    laws.check(law, traced == compiled, f"{traced} and {compiled}")


def unclocked(state: Any) -> Any:
    """What a step that is not applied leaves as it was."""
    keep = jax.tree_util.tree_leaves_with_path(state)
    return [np.asarray(numbers(x)) for path, x in keep if "step" not in str(path[-1])]


def numbers(x: Any) -> Any:
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def check_copies(laws: Laws, tree: Any) -> None:
    """Devices that hold the same piece of an array hold the same bits."""
    for x in leaves(tree):
        pieces: dict[str, bytes] = {}
        for shard in numbers(x).addressable_shards:
            bits = np.asarray(shard.data).tobytes()
            same = pieces.setdefault(str(shard.index), bits) == bits
            laws.check("copies are equal", same, f"of an array of shape {x.shape}")


def restored(laws: Laws, state: Any, like: Any) -> Any:
    """The state after a checkpoint."""
    promised = laws.promised("what runs can be saved")
    with tempfile.TemporaryDirectory() as folder, promised:
        jaxcomp.save(folder, state)
        found = jaxcomp.restore(folder, like)
    pairs = [leaves(without_reports(x)) for x in (state, found)]
    for a, b in zip(*pairs, strict=True):
        same = np.asarray(numbers(a)).tobytes() == np.asarray(numbers(b)).tobytes()
        laws.check("saved and restored", same and a.dtype == b.dtype, f"{a.shape}")
    return found


def without_reports(state: Any) -> Any:
    is_report = lambda x: isinstance(x, jaxcomp.Info)  # noqa: E731
    return jax.tree.map(lambda x: () if is_report(x) else x, state, is_leaf=is_report)


def resized(
    laws: Laws,
    program: Program,
    loop: Loop,
    state: Any,
    trees: Any,
    ok: Any,
    found: Any,
) -> None:
    """What was given arrives, whatever the number of workers in between."""
    count = program.resize * program.per_device
    if program.mapper == "data_parallel":
        count = min(count, 4)
    one = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), trees)
    new = loop_of(program, one, count)
    whole = jaxcomp.overlapped(new.exchange, program.overlap)
    promised = laws.promised("what runs can be resized")
    with tempfile.TemporaryDirectory() as folder, promised:
        jaxcomp.save(folder, state)
        resize = functools.partial(jaxcomp.resized, method=whole, params=lambda _: one)
        state = jaxcomp.restore(folder, new.state, resize=resize)
    plain = loop.exchange.keeper or "server_feedback=True" in program.method
    plain = plain and handed_over(program, np.zeros((1, 1)), [True]) is not None
    plain = plain and loop.exchange.momentum is None
    given = flat(trees, 2)[:SHORT].mean(axis=1)[ok[:SHORT]].sum(axis=0)
    arrived = flat(found, 1)[ok[:SHORT]].sum(axis=0)
    last: list[bool] = []
    size = np.abs(arrived).max(initial=0) + np.abs(given).max(initial=0)
    more = gradients(program, count, 1, program.seed + 1)
    for i in range(STEPS):
        tree = jax.tree.map(lambda x, i=i: x[0] if i == 0 else 0 * x[0], more)
        mean, state = new.step(state, tree)
        mean = mean if new.shared else jax.tree.map(lambda x: x[0], mean)
        row = flat(mean)
        given = given + (flat(tree, 1).mean(axis=0) if i == 0 else 0)
        arrived = arrived + row
        size = max(size, np.abs(arrived).max(initial=0))
        last.append(not row.any())
    if "nan" not in program.compressor + str(program.policy):
        laws.check("finite after a resize", np.isfinite(arrived).all())
    if plain and all(last[-5:]):
        worst = np.abs(arrived - given).max(initial=0)
        limit = 20 * precision(program) * size
        laws.check("all arrives after a resize", worst <= limit, f"{worst} > {limit}")
