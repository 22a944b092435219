"""Another number of workers: what is owed and what neighbours know, over registries."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import exchanges, memory, parallel
from jaxcomp.core.types import PerWorker, is_per_worker
from jaxcomp.mixers import gossip, local
from tests.every_method import ARGUMENTS, COMPRESSORS, GRAPHS, trees
from tests.exchanges.matrix import MEMORIES
from tests.tiers import tiers
from tests.workers import one_of

OLD = 8
NEW = (3, 16)
RNG = np.random.default_rng(0)


def close(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        a,
        b,
    )


def mean(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.mean(np.asarray(x, np.float64), axis=0), tree)


def minus(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: np.float64(x) - np.float64(y), a, b)


def same_kind(a: Any, b: Any) -> None:
    """Structure, shapes and dtypes."""
    shapes = [jax.tree.map(lambda x: (np.shape(x), x.dtype), t) for t in (a, b)]
    assert shapes[0] == shapes[1]


# --- Exchanges and memories -----------------------------------------------------------


def first(exchange: jaxcomp.Exchange, workers: int) -> Any:
    """The state of a link before the first step."""
    state = jaxcomp.distributed(exchange, seed=0).init(one_of(trees(1)))
    return parallel.spread(state, parallel.setup(workers, "vmap"))


def lived(state: Any) -> Any:
    """The state with other floats in what is marked, as after many steps."""

    def other(node: Any) -> Any:
        return jax.tree.map(drawn, node) if is_per_worker(node) else node

    def drawn(x: Any) -> Any:
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return np.float32(RNG.normal(size=x.shape)) if is_float else x

    return jax.tree.map(other, state, is_leaf=is_per_worker)


def held_of(exchange: jaxcomp.Exchange, link: Any) -> Any:
    """The mean over the workers of what is not yet sent."""
    assert exchange.held is not None
    axes = parallel.axes(link.exchange)
    return mean(jax.vmap(exchange.held, in_axes=(axes,))(link.exchange))


SPECS = (
    *exchanges.REGISTRY,
    "two_phase(server_feedback=True)",
    "hierarchical(outer=sparse_reduce, per_host=1)",
    "hierarchical(outer=budget(4000, ladder=[sign, cast]), per_host=1)",
)


FEEDBACK = "error_feedback(allow=True)"


def exchange_of(spec: str, kept: str, axis: str = "workers") -> jaxcomp.Exchange:
    compressor = COMPRESSORS.get(spec, "sign")
    if "sparse_reduce" in spec or "aligned_psum" in spec:
        compressor = "rotating_slice(keep=0.2)"
    if "server_feedback" in spec:
        compressor = "qsgd(levels=15)"
    arguments = ARGUMENTS.get(spec, "").replace("per_host=2", "per_host=1")
    built = exchanges.make(spec + arguments, compressor, axis=axis)
    return memory.make(kept, built)


def check_exchange(exchange: jaxcomp.Exchange) -> None:
    """The laws, from eight workers to other numbers and back."""

    def to(link: Any, workers: int) -> Any:
        return jaxcomp.resized(link, workers, exchange, lambda _: trees())

    link = lived(first(exchange, OLD))
    for count in NEW:
        new = to(link, count)
        back = to(new, OLD)
        same_kind(new, first(exchange, count))
        same_kind(back, link)
        if exchange.held is not None:
            close(held_of(exchange, new), held_of(exchange, link))
            close(held_of(exchange, back), held_of(exchange, link))


@pytest.mark.parametrize("kept", MEMORIES)
def test_what_a_memory_owes_stays(kept):
    check_exchange(exchange_of("gather", kept))


@pytest.mark.parametrize("spec", SPECS)
def test_what_an_exchange_owes_stays(spec):
    exchange = exchange_of(spec, "none")
    if exchange.lawful:
        exchange = memory.make(FEEDBACK, exchange)
    check_exchange(exchange)


@pytest.mark.parametrize(
    "spec", [s for s in SPECS if s.startswith(("two_phase(", "hierarchical", "gather"))]
)
def test_what_the_parts_of_an_overlap_owe_stays(spec):
    exchange = memory.make(FEEDBACK, exchange_of(spec, "none"))
    check_exchange(jaxcomp.overlapped(exchange, 2))


@pytest.mark.parametrize("spec", ["two_phase(server_feedback=True)", "gather"])
def test_conservation_goes_on_afterwards(spec):
    """What arrives later, and what is then held, are what was ever given."""
    few = 3
    exchange = exchange_of(spec, "error_feedback(allow=True)")
    link = lived(first(exchange, OLD))
    new = jaxcomp.resized(link, few, exchange, lambda _: trees())
    axes = parallel.axes(new.exchange)

    def averaged(state: Any, tree: Any) -> tuple[Any, Any]:
        step = exchange.average(tree, state, jax.random.key(0))
        return step.mean, step.state

    average = jax.vmap(
        averaged, in_axes=(axes, 0), out_axes=(None, axes), axis_name="workers"
    )
    given = trees(few)
    arrived, state = jax.jit(average)(new.exchange, given)
    held = held_of(exchange, new._replace(exchange=state))
    owed = jax.tree.map(np.add, mean(given), held_of(exchange, link))
    close(owed, jax.tree.map(np.add, arrived, held), 1e-5)


# --- Mixers ---------------------------------------------------------------------------

START = trees(OLD)


class Run(NamedTuple):
    """A state as a loop has it: all of it is each worker's own."""

    params: PerWorker
    opt_state: PerWorker


@functools.cache
def mixer_of(name: str, workers: int) -> jaxcomp.Mixer:
    spec = name + ARGUMENTS.get(name, "")
    if name in local.REGISTRY:
        kept = "none" if name == "sparse_loco" else "error_feedback"
        sparse = "top_k(keep=0.3)"
        return jaxcomp.make_mixer(
            spec, exchange="gather", compressor=sparse, memory=kept
        )
    sends_all = name in ("d_psgd", "stale_hypercube")
    compressor = "none" if sends_all else "top_k(keep=0.5)"
    graph = GRAPHS.get(name, "star")
    return jaxcomp.make_mixer(spec, graph, workers, compressor=compressor)


@functools.cache
def chain(name: str, workers: int) -> optax.GradientTransformationExtraArgs:
    link = jaxcomp.mixing(mixer_of(name, workers), seed=0)
    rate = optax.constant_schedule(0.1)  # it counts, and the momentum is local
    return optax.chain(optax.sgd(rate, momentum=0.9), link)


def steps(name: str, workers: int, run: Run | None, count: int) -> Run:
    """Some steps, from a state or from the start; each worker has its own gradient."""
    tx = chain(name, workers)
    pulls = trees(workers, seed=1)

    def of_worker(params: Any, opt_state: Any, pull: Any) -> Any:
        opt_state = tx.init(params) if opt_state is None else opt_state

        def step(carry: Any, _: Any) -> Any:
            x, state = carry
            gradient = jax.tree.map(jnp.subtract, x, pull)
            updates, state = tx.update(gradient, state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(step, (params, opt_state), length=count)[0]

    mapped = jax.jit(jax.vmap(of_worker, axis_name="workers"))
    given = (START, None) if run is None else (run.params.value, run.opt_state.value)
    params, opt_state = mapped(*given, pulls)
    return Run(PerWorker(params), PerWorker(opt_state))


@functools.cache
def lived_run(name: str) -> Run:
    # Five, so that local training is in the middle of a round.
    return jax.tree.map(np.asarray, steps(name, OLD, None, 5))


def method_state(run: Run) -> Any:
    return jaxcomp.find_state(run.opt_state).exchange


def owed(name: str, run: Run) -> list[Any]:
    """The mean over the workers of what their messages have not said yet."""
    state, params = method_state(run), run.params.value
    if name in ("choco", "choco_overlapped"):
        return [mean(minus(params, state.public))]
    if name == "deep_squeeze":
        return [mean(state.error)]
    if name in local.REGISTRY:
        [anchor], [inner] = state.anchors, state.exchanges
        return [mean(minus(anchor, params)), mean(inner.residual.value)]
    return []


def check_neighbours(name: str, workers: int, run: Run, tolerance: float) -> None:
    """What a worker knows of its neighbours is what they have."""
    state, params = method_state(run), run.params.value
    if name in local.REGISTRY or name == "delayed_sgd":
        common = state.server if name == "delayed_sgd" else state.anchors
        close(common, jax.tree.map(lambda x: np.stack([x[0]] * workers), common), 0)
        return
    known = {"choco": "public", "choco_overlapped": "public"}.get(name)
    models = getattr(state, known) if known else params
    graph = jaxcomp.topology(GRAPHS.get(name, "star"), workers)

    def mixed(x: Any) -> Any:
        return np.tensordot(graph.rounds[0].matrix, np.float64(x), axes=1)

    if name in ("choco", "choco_overlapped", "dcd_psgd"):
        pull = jax.tree.map(lambda x: mixed(x) - np.float64(x), models)
        close(state.pull, pull, tolerance)
    if name == "ecd_psgd":
        heard = jax.tree.map(np.add, state.ahead, models)
        close(heard, jax.tree.map(mixed, models), tolerance)
    if name == "stale_hypercube":
        after = jax.tree.map(np.add, state.way, params)
        close(after, jax.tree.map(lambda m, x: m + 0 * x, mean(params), after), 1e-5)


def momentum_of(run: Run) -> Any:
    return optax.tree.get(run.opt_state, "trace")


def to(name: str, run: Run, workers: int) -> Run:
    return jaxcomp.resized(run, workers, mixer_of(name, workers), lambda s: s.params)


@pytest.mark.parametrize(
    "name",
    tiers(
        [*gossip.REGISTRY, *local.REGISTRY],
        lambda name: name not in ("choco_overlapped", "dcd_psgd", "sparse_loco"),
    ),
)
def test_mixers_keep_the_mean_model_and_what_is_owed(name):
    run = lived_run(name)
    for count in NEW:
        if name == "stale_hypercube" and count == 3:
            continue  # its graph has 2^k nodes
        new = to(name, run, count)
        back = to(name, new, OLD)
        same_kind(back, run)
        for workers, found in ((count, new), (OLD, back)):
            close(mean(found.params.value), mean(run.params.value))
            close(owed(name, found), owed(name, run))
            check_neighbours(name, workers, found, 2e-6)
            close(mean(momentum_of(found)), mean(momentum_of(run)))
        init = jax.vmap(chain(name, count).init)
        fresh = jax.eval_shape(init, new.params.value)
        same_kind(new.opt_state.value, fresh)


def test_what_owners_of_fragments_hold_stays():
    """Each fragment has owners of its own."""
    mixer = jaxcomp.make_mixer(
        "local_sgd(h=2, fragments=2)",
        exchange="two_phase(server_feedback=True)",
        compressor="qsgd(levels=15)",
    )
    state = PerWorker(jax.vmap(jaxcomp.mixing(mixer, seed=0).init)(START))
    run = Run(PerWorker(START), lived(state))
    new = jaxcomp.resized(run, 3, mixer, lambda run: run.params)
    pairs = zip(method_state(new).exchanges, method_state(run).exchanges, strict=True)
    for after, before in pairs:
        held = after.held.value
        close(mean(held), mean(before.held.value))
        for x in jax.tree.leaves(held):
            assert (np.count_nonzero(x, axis=0) == 1).all(), "one owner each"


# --- Refusals, keys and checkpoints ---------------------------------------------------


class Undeclared(NamedTuple):
    own: PerWorker


def linked(state: Any) -> Any:
    exact = jaxcomp.distributed(exchange_of("exact", "none"), seed=0)
    link: Any = exact.init(jnp.ones(1))
    return link._replace(exchange=state, info=())


def test_what_no_rule_covers_is_refused_by_name():
    floats, counts = np.ones((2, 1)) * [[1], [2]], np.array([1, 2])
    undeclared = linked(Undeclared(PerWorker({"a": floats})))
    with pytest.raises(ValueError, match="exchange/own/value/a differs.*averaged_on_"):
        jaxcomp.resized(undeclared, 4)
    with pytest.raises(ValueError, match=r"seen/value \(int64\) differs between worke"):
        jaxcomp.resized({"seen": PerWorker(counts)}, 1)
    with pytest.raises(ValueError, match="b/value of 2, c/value of 3"):
        jaxcomp.resized({"b": PerWorker(counts), "c": PerWorker(np.ones(3))}, 1)
    with pytest.raises(ValueError, match="value is marked and has no axis of workers"):
        jaxcomp.resized(PerWorker(np.float32(1)), 4)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        jaxcomp.resized(PerWorker(floats), 0)


def test_mixers_are_asked_for():
    run = lived_run("choco")
    with pytest.raises(ValueError, match="a ChocoState, which depends on the number"):
        jaxcomp.resized(run, 4)
    with pytest.raises(ValueError, match="graph has 4 nodes, and there are to be 2"):
        jaxcomp.resized(run, 2, mixer_of("choco", 4))
    with pytest.raises(
        ValueError, match="ChocoState: this state is built anew.*params="
    ):
        jaxcomp.resized(run, 4, mixer_of("choco", 4))
    bare = mixer_of("choco", 4)._replace(resize=())
    with pytest.raises(ValueError, match="with an entry for this type in its `resize`"):
        jaxcomp.resized(run, 4, bare, lambda s: s.params)


def test_equal_values_stay_to_the_bit_and_keys_stay_different():
    rows = np.stack([np.float32(RNG.normal(size=5))] * 3)
    for count in (1, 2, 5):
        for row in jaxcomp.resized(PerWorker(rows), count).value:
            np.testing.assert_array_equal(row, rows[0])
    keys = jax.random.split(jax.random.key(0), 4)
    for count in (2, 3, 8):
        new = jax.random.key_data(jaxcomp.resized(PerWorker(keys), count).value)
        assert len(np.unique(new, axis=0)) == count


@pytest.mark.parametrize("others", [0, 1])
def test_arrays_without_elements_may_change_their_shape(others, tmp_path):
    """As the table of `stale_hypercube` does, which has a row for each worker."""

    def of(workers: int) -> Any:
        full = [np.ones((workers, 3))] * others
        return PerWorker([*full, np.zeros((workers, workers, 0))])

    jaxcomp.save(tmp_path, of(4))
    found = jaxcomp.restore(tmp_path, of(2), resize=lambda _, workers: of(workers))
    same_kind(found, of(2))


def test_a_checkpoint_is_restored_with_other_workers(tmp_path):
    """Placed as the new state, on fewer and on more devices."""
    exchange = exchange_of("gather", "dgc(allow=True)")

    def fresh(workers: int) -> Any:
        crew = parallel.setup(workers, "shard_map")
        tx = jaxcomp.distributed(exchange, seed=0)
        params = one_of(trees(1))
        state = {"tx": tx.init(params), "w": jnp.ones(3), "step": 7}
        return parallel.spread(state, crew) | {"key": PerWorker(keys_of(workers))}

    def keys_of(workers: int) -> Any:
        return jax.random.split(jax.random.key(1), workers)

    state = fresh(4)
    state["tx"] = jax.tree.map(
        lambda new, old: jax.device_put(new, old.sharding),
        lived(state["tx"]),
        state["tx"],
    )
    jaxcomp.save(tmp_path, state)
    for count in (2, 8):
        like = fresh(count)
        with pytest.raises(jaxcomp.CheckpointError, match="of another state"):
            jaxcomp.restore(tmp_path, like)
        got = jaxcomp.restore(tmp_path, like, resize=jaxcomp.resized)
        close(held_of(exchange, got["tx"]), held_of(exchange, state["tx"]))
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(like), strict=True):
            assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)


def product(params: Any, rows: Any) -> Any:
    """A loss whose gradient is the only row of its batch."""
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(rows), strict=True)
    return sum((jnp.sum(p * x[0]) for p, x in pairs), start=jnp.float32(0))


CUTS = {
    "whole": (P(), P()),
    "rows": (P("model"), P("model")),
    "columns": (P("model"), P(None, "model")),
    "one": (P(), P("model")),
}
OUTER = tuple(
    f"hierarchical(outer={name}{ARGUMENTS.get(name, '')}, per_host=1)"
    for name in exchanges.REGISTRY
    if name not in ("hierarchical", "majority_vote", "power_sgd")
)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    ("spec", "kept", "cut", "parts"),
    tiers(
        [
            *itertools.product((*SPECS, *OUTER), [FEEDBACK], ["columns", "one"], [1]),
            *itertools.product([SPECS[-3]], ["none", FEEDBACK], ["whole", "rows"], [1]),
            (SPECS[-3], FEEDBACK, "rows", 2),
        ],
        (SPECS[-3], FEEDBACK, "rows", 2).__eq__,
    ),
)
def test_under_jit_all_that_is_owed_arrives_after_a_restore(
    tmp_path, spec, kept, cut, parts
):
    """State lives where it did, with fewer workers, however params are cut."""
    exchange = exchange_of(spec, "none", axis="data")
    kept = kept if exchange.lawful else "none"
    exchange = jaxcomp.overlapped(memory.make(kept, exchange), parts)

    def made(workers: int) -> Any:
        devices = np.array(jax.devices()[: 2 * workers]).reshape(workers, 2)
        mesh = jax.sharding.Mesh(devices, ("data", "model"))
        shapes = {"bias": (14,), "kernel": (10, 6)}
        params = {
            name: jax.device_put(
                jnp.zeros(shape), jax.sharding.NamedSharding(mesh, place)
            )
            for (name, shape), place in zip(shapes.items(), CUTS[cut], strict=True)
        }
        dp = jaxcomp.data_parallel(exchange, mesh)
        return jax.jit(dp.value_and_grad(product)), params, dp.init(params)

    def held(comm: Any) -> Any:
        if exchange.held is None:
            return {}
        found = [held_of(exchange, link) for link in comm.links]
        return {name: x for part in found for name, x in part.items() if x is not None}

    step, params, comm = made(4)
    rows = {n: np.float32(RNG.normal(size=(4, *x.shape))) for n, x in params.items()}
    for _ in range(3):
        _, _, comm = step(comm, params, rows)
    jaxcomp.save(tmp_path, comm)

    step, params, like = made(2)
    resize = functools.partial(
        jaxcomp.resized, method=exchange, params=lambda _: params
    )
    comm_of_few = jaxcomp.restore(tmp_path, like, resize=resize)
    owed = held(comm_of_few)
    close(owed, held(comm))
    for x, y in zip(*map(jax.tree.leaves, (comm_of_few, like)), strict=True):
        assert (x.shape, x.sharding) == (y.shape, y.sharding)
    arrived = jax.tree.map(lambda x: np.zeros(x.shape), params)
    nothing = {n: np.zeros((2, *x.shape), np.float32) for n, x in params.items()}
    for _ in range(20):
        _, means, comm_of_few = step(comm_of_few, params, nothing)
        arrived = jax.tree.map(np.add, arrived, jax.device_get(means))
    left = held(comm_of_few)
    for name, x in owed.items():
        close(arrived[name] + left[name], x, 1e-5)
        if "server" in spec:
            assert np.abs(left[name]).max() < 1e-3 < np.abs(x).max()


def test_how_params_are_cut_has_to_be_known():
    exchange = exchange_of(SPECS[-3], "none", axis="data")
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    place = jax.sharding.NamedSharding(mesh, P("model"))
    params = jax.device_put(jnp.zeros(8), place)
    comm = jaxcomp.data_parallel(exchange, mesh).init(params)
    with pytest.raises(ValueError, match=r"cut by P.*gives arrays that are on no mesh"):
        jaxcomp.resized(comm, 2, exchange, lambda _: np.zeros(8))
