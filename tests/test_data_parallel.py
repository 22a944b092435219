"""`data_parallel` under jit: the numbers of pmap, and what a model axis costs."""

import functools
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.core.types import is_clock, is_per_worker, ticked
from jaxcomp.transforms.distributed import distributed
from jaxcomp.transforms.jit.layout import Grid, layouts
from tests.exchanges.matrix import FIRST, MEMORIES, gradients, name_of
from tests.tiers import tiers

pytestmark = pytest.mark.usefixtures("in_time")
WORKERS = 4
BY_DATA = Mesh(np.array(jax.devices()[:WORKERS]), "data")
BY_MODEL = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))


def make(exchange: str, compressor: str | None = None, memory: str = "none", **more):
    """An exchange over the data axis, with what the matrix tries it with."""
    spec = exchange.replace("HOST", "2")
    return jaxcomp.make_exchange(spec, compressor, memory, axis="data", **more)


def product(params: Any, rows: Any) -> jax.Array:
    """A loss whose gradient is the only row of its batch, to the bit."""
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(rows), strict=True)
    return sum((jnp.sum(p * x[0]) for p, x in pairs), start=jnp.float32(0))


def equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


# --- The same as under pmap -------------------------------------------------------

METHODS = [
    ("gather", "top_k(keep=0.1)", "error_feedback"),
    ("two_phase", "sign", "error_feedback"),
    ("exact", None, "none"),
    ("power_sgd(rank=1, min_rate=1)", None, "error_feedback"),
]
OTHERS = [
    (exchange, compressor, "error_feedback(allow=True)")
    for exchange, compressor in FIRST.items()
    if name_of(exchange) != "majority_vote"
]


@pytest.mark.parametrize(
    ("exchange", "compressor", "kept"),
    tiers(
        [*METHODS, *OTHERS, ("majority_vote", None, "none")],
        lambda case: case in METHODS,
    ),
)
def test_means_and_state_are_those_of_pmap(exchange, compressor, kept):
    built = make(exchange, compressor, kept)
    inputs = [gradients(WORKERS, seed) for seed in range(2)]
    one = jax.tree.map(lambda x: x[0], inputs[0])

    crew = parallel.setup(WORKERS, "pmap", axis="data")
    link = distributed(built, seed=3)
    state = parallel.spread(link.init(one), crew)
    axes = parallel.axes(state)
    update = parallel.map_step(
        link.update, crew, in_axes=(0, axes), out_axes=(None, axes)
    )
    dp = jaxcomp.data_parallel(built, BY_DATA, seed=3)
    comm = dp.init(one)
    step = jax.jit(dp.value_and_grad(product))
    for rows in inputs:
        expected, state = update(parallel.place(rows, crew, 0), state)
        _, found, comm = step(comm, one, rows)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
            parallel.to_host((expected, state)),
            parallel.to_host((found, comm.links[0])),
        )


# --- A model axis -----------------------------------------------------------------

SPECS = {
    "in": {"kernel": P(None, "model"), "bias": P("model")},
    "out": {"kernel": P("model"), "bias": P()},
}
RNG = np.random.default_rng(0)
STEPS = 100
INPUTS = RNG.normal(size=(32, 16)).astype(np.float32)
TARGETS = np.tanh(INPUTS @ RNG.normal(size=(16, 4)).astype(np.float32))
PARAMS = {
    "in": {
        "kernel": RNG.normal(size=(16, 64), scale=0.25).astype(np.float32),
        "bias": np.zeros(64, np.float32),
    },
    "out": {
        "kernel": RNG.normal(size=(64, 4), scale=0.1).astype(np.float32),
        "bias": np.zeros(4, np.float32),
    },
}
# One vector of all tensors: what is sent of one of them depends on the others.
WHOLE = make("gather", "top_k(keep=0.2)", "error_feedback", scope="whole_tree")


def error_of(params: Any, inputs: Any, targets: Any) -> jax.Array:
    hidden = jax.nn.relu(inputs @ params["in"]["kernel"] + params["in"]["bias"][None])
    found = hidden @ params["out"]["kernel"] + params["out"]["bias"][None]
    return jnp.mean(jnp.square(found - targets))


def placed(mesh: Mesh = BY_MODEL, specs: Any = SPECS) -> Any:
    return jax.device_put(
        PARAMS, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    )


def batch(mesh: Mesh = BY_MODEL, axis: Any = "data") -> Any:
    return jax.device_put((INPUTS, TARGETS), NamedSharding(mesh, P(axis)))


class Loop(NamedTuple):
    """A training loop as anybody writes it under jit."""

    start: Any  # on the host
    shardings: Any
    step: Any  # donates its state
    traces: list[int]

    def fresh(self) -> Any:
        return jax.device_put(self.start, self.shardings)

    def run(self, state: Any, count: int) -> tuple[Any, Any, float]:
        grads, loss = None, jnp.nan
        for _ in range(count):
            state, grads, loss = self.step(state, *batch())
            jax.block_until_ready(loss)
        return state, grads, float(loss)


@functools.cache
def loop(compressed: bool = True) -> Loop:
    dp = jaxcomp.data_parallel(WHOLE, BY_MODEL)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    traces: list[int] = []

    def step(state: Any, *batch: Any) -> Any:
        traces.append(1)
        params, opt_state, comm = state
        if compressed:
            loss, grads, comm = dp.value_and_grad(error_of)(comm, params, *batch)
        else:
            loss, grads = jax.value_and_grad(error_of)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, comm), grads, loss

    params = placed()
    state = (params, tx.init(params), dp.init(params))
    shardings = jax.tree.map(lambda x: x.sharding, state)
    donating = jax.jit(step, donate_argnums=0)
    return Loop(jax.device_get(state), shardings, donating, traces)


@functools.cache
def trained() -> Any:
    return loop().run(loop().fresh(), STEPS)


def test_a_model_axis_carries_what_it_did_and_the_data_axis_two_messages():
    """One of all shards, one of what is replicated, and the mean of the losses.

    Along the model axis devices agree, by a byte, whether the gradient is finite.
    """
    plain = jax.jit(jax.value_and_grad(error_of)).lower(placed(), *batch())
    dp = jaxcomp.data_parallel(WHOLE, BY_MODEL)
    ours = jax.jit(dp.value_and_grad(error_of))
    ours = ours.lower(dp.init(placed()), placed(), *batch())
    dense, compressed = (
        wire.collective_bytes(x.compile(), by_axis=BY_MODEL) for x in (plain, ours)
    )
    assert compressed["model"] == {"all-reduce": dense["model"]["all-reduce"] + 1}

    shards = {"in": {"kernel": (16, 32), "bias": (32,)}, "out": {"kernel": (32, 4)}}
    messages = []
    for part in (shards, (4,)):
        tree = jax.tree.map(jnp.zeros, part, is_leaf=lambda x: isinstance(x, tuple))
        messages += wire.traced_collectives(
            lambda x, state: WHOLE.average(x, state, jax.random.key(0)).mean,
            *(tree, WHOLE.init(tree)),
            axis="data",
            workers=2,
        )
    assert len(messages) == 2
    assert compressed["data"] == {**wire.collective_bytes(messages), "all-reduce": 4}
    assert sum(compressed["data"].values()) < sum(dense["data"].values()) / 4


def test_it_learns_as_the_uncompressed_loop_does():
    _, _, loss = trained()
    uncompressed = loop(compressed=False)
    _, _, dense = uncompressed.run(uncompressed.fresh(), STEPS)
    start = float(error_of(PARAMS, INPUTS, TARGETS))
    assert max(loss, dense) < 0.01 * start


def test_gradients_and_residuals_live_where_their_params_do():
    (params, _, comm), grads, _ = trained()
    parts = [link.exchange.residual.value for link in comm.links]
    residuals = jax.tree.map(
        lambda *found: next(x for x in found if x is not None),
        *parts,
        is_leaf=lambda x: x is None,
    )

    def check(param: jax.Array, grad: jax.Array, residual: jax.Array, spec: P) -> None:
        assert grad.sharding.is_equivalent_to(param.sharding, grad.ndim)
        own = NamedSharding(BY_MODEL, P("data", *spec))
        assert residual.sharding.is_equivalent_to(own, residual.ndim)
        assert np.ptp(residual, axis=0).any(), "each worker keeps its own"

    jax.tree.map(check, params, grads, residuals, SPECS)


def test_replicas_stay_equal():
    """Also where what is sent of a tensor depends on others that are cut."""
    state, _, _ = trained()
    for array in jax.tree.leaves(state):
        pieces: dict[str, bytes] = {}
        for shard in array.addressable_shards:
            piece = np.asarray(shard.data).tobytes()
            assert pieces.setdefault(str(shard.index), piece) == piece


def test_one_trace_and_no_copy_of_what_is_donated():
    state = loop().fresh()
    after, _, _ = loop().run(state, 3)
    params, _, comm = state
    kept = (params, [link.exchange for link in comm.links])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(kept))
    assert jax.tree.map(lambda x: x.sharding, after) == loop().shardings
    assert len(loop().traces) == 1


def test_a_restored_run_goes_on_to_the_bit():
    state, _, _ = loop().run(loop().fresh(), 5)
    saved = jax.device_get(state)
    restored = jax.device_put(saved, loop().shardings)
    equal(loop().run(restored, 5), loop().run(state, 5))


def test_a_bad_gradient_of_one_worker_is_seen_by_all_and_can_be_skipped():
    bad = INPUTS.copy()
    bad[3] = np.nan
    dp = jaxcomp.data_parallel(WHOLE, BY_MODEL)

    @jax.jit
    def step(state: Any, *batch: Any) -> Any:
        params, comm = state
        loss, grads, comm = dp.value_and_grad(error_of)(comm, params, *batch)
        fine = jnp.isfinite(optax.tree.norm(grads))
        params = jax.tree.map(lambda p, g: jnp.where(fine, p - g, p), params, grads)
        return (params, comm), grads, loss

    params, _, comm = loop().fresh()
    (after, kept), grads, loss = step((params, comm), bad, TARGETS)
    assert jnp.isnan(loss)
    seen = {
        shard.device
        for grad in jax.tree.leaves(grads)
        for shard in grad.addressable_shards
        if np.isnan(shard.data).any()
    }
    assert seen == set(BY_MODEL.devices.flat)
    equal(after, params)
    equal(kept, ticked(comm))


def test_a_bad_element_stops_the_devices_that_hold_other_shards():
    """All keep what they had not sent, as if the step had not been."""
    dp = jaxcomp.data_parallel(WHOLE, BY_MODEL)
    step = jax.jit(dp.value_and_grad(product))
    rows = jax.tree.map(lambda x: np.stack([x, x + 1]), PARAMS)
    _, _, before = step(dp.init(placed()), placed(), rows)
    rows["in"]["kernel"][0, 0, 0] = np.inf
    _, grads, after = step(before, placed(), rows)
    assert not np.isfinite(optax.tree.norm(grads))
    equal(after, ticked(before))


# --- Other people's trees, batches and meshes -------------------------------------


SIGNS = make("gather", "sign", "error_feedback")


def taken(exchange: str, kept: str) -> bool:
    """Whether an exchange takes a memory."""
    try:
        make(exchange, FIRST[exchange], kept)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("exchange", "kept"),
    [pair for pair in itertools.product(FIRST, MEMORIES) if taken(*pair)],
)
def test_state_is_laid_out_by_its_marks(exchange, kept):
    """What differs between workers has their axis; of shards, each has its own."""
    link = distributed(make(exchange, FIRST[exchange], kept))
    params = {"kernel": jnp.zeros((10, 18)), "bias": jnp.zeros(7)}
    specs = (P(), P(None, "model"))  # in the order of the names
    for layout in layouts(link.init, params, specs, Grid(BY_MODEL, ("data",))):

        def check(node: Any, cut: tuple[str, ...] = layout.cut) -> None:
            if is_clock(node):
                assert node.step.spec == P()
                return
            for place in jax.tree.leaves(node):
                named = {name for name in place.spec if name}
                assert named == {*cut, *(["data"] if is_per_worker(node) else [])}

        jax.tree.map(
            check, layout.places, is_leaf=lambda x: is_per_worker(x) or is_clock(x)
        )


CUTS = {"rows": (P("model"), P("model")), "columns": (P(None, "model"), P())}
KEPT = (*MEMORIES, "dgc(clip=0.5)", "dgc(clip=0.5, clip_each=True)")


@pytest.mark.parametrize(
    "kept", tiers(KEPT, ("dgc(allow=True)", *KEPT[-2:]).__contains__)
)
def test_how_params_are_cut_changes_no_number(kept):
    """With a memory around an exchange that sends everything, or it is refused."""
    rng = np.random.default_rng(0)
    shapes = {"kernel": (6, 4), "vector": (8,)}
    rows = {n: rng.normal(size=(2, *shape)) for n, shape in shapes.items()}
    rows = jax.tree.map(np.float32, rows)
    dp = jaxcomp.data_parallel(make("exact", memory=kept), BY_MODEL)
    step = jax.jit(dp.value_and_grad(product))

    def means(specs: tuple[P, ...]) -> list[Any]:
        zeros = {n: jnp.zeros(shape) for n, shape in shapes.items()}
        on_mesh = [NamedSharding(BY_MODEL, spec) for spec in specs]
        params = jax.device_put(zeros, dict(zip(shapes, on_mesh, strict=True)))
        comm, found = dp.init(params), []
        for _ in range(3):
            _, mean, comm = step(comm, params, rows)
            found.append(jax.device_get(mean))
        return found

    expected = means((P(), P()))
    for specs in CUTS.values():
        if "clip" in kept:
            with pytest.raises(ValueError, match=r"clip=0\.5.* is cut over the mesh"):
                means(specs)
        else:
            equal(means(specs), expected)


def test_shards_of_a_tensor_draw_apart():
    exchange = make("gather", "random_k(keep=0.1)")
    dp = jaxcomp.data_parallel(exchange, BY_MODEL)
    params = jax.device_put(jnp.zeros(400), NamedSharding(BY_MODEL, P("model")))
    step = jax.jit(dp.value_and_grad(product))
    _, mean, _ = step(dp.init(params), params, jnp.ones((2, 400)))
    left, right = np.asarray(mean).reshape(2, 200) != 0
    assert left.any()
    assert (left != right).any()


def test_trees_with_none_batches_with_shared_parts_and_what_a_loss_returns():
    """As equinox filters a model; aux is each worker's own, and the axis has a name."""
    params = {"w": jnp.arange(3.0), "static": None}

    def loss_fn(params: Any, rows: Any, scale: Any) -> Any:
        loss = scale["by"] * jnp.sum(params["w"] * rows["x"][0])
        return loss, {"worker": jax.lax.axis_index("data"), "rows": rows["x"]}

    dp = jaxcomp.data_parallel(make("exact"), BY_DATA)
    step = dp.value_and_grad(loss_fn, has_aux=True, in_axes=(0, {"by": None}))
    rows = {"x": jnp.arange(12.0).reshape(4, 3), "mask": None}
    scale = {"by": jnp.float32(2)}
    (loss, aux), grads, _ = jax.jit(step)(dp.init(params), params, rows, scale)
    assert grads["static"] is None
    np.testing.assert_array_equal(grads["w"], 2 * np.mean(rows["x"], axis=0))
    assert float(loss) == float(jnp.sum(grads["w"] * params["w"]))
    np.testing.assert_array_equal(aux["worker"], range(4))
    np.testing.assert_array_equal(aux["rows"], rows["x"][:, None])


@pytest.mark.parametrize("exchange", tiers(FIRST, lambda spec: "HOST" in spec))
def test_several_data_axes_are_one(exchange):
    """They need not even stand side by side."""
    cube = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "model", "fsdp"))
    rows = gradients(WORKERS, 0)
    one = jax.tree.map(lambda x: x[0], rows)
    means = []
    for mesh, axis in [(BY_DATA, "data"), (cube, ("data", "fsdp"))]:
        spec = exchange.replace("HOST", "2")
        built = jaxcomp.make_exchange(spec, FIRST[exchange], "none", axis=axis)
        dp = jaxcomp.data_parallel(built, mesh, axis)
        step = jax.jit(dp.value_and_grad(product))
        means.append(step(dp.init(one), one, rows)[1])
    equal(*jax.device_get(means))


def test_nnx_models_are_taken_as_they_are():
    """Statistics of a BatchNorm are each worker's own, and averaged by the caller."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.out = nnx.Linear(3, 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.out(self.norm(x))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    comm = dp.init(nnx.state(model, nnx.Param))

    def loss_of(model: Model, x: Any, y: Any) -> Any:
        loss = jnp.mean(jnp.square(model(x) - y))
        return loss, nnx.state(model, nnx.BatchStat)

    @nnx.jit
    def step(model: Model, optimizer: Any, comm: Any, x: Any, y: Any) -> Any:
        averaged = dp.averaged(nnx.value_and_grad(loss_of, has_aux=True), has_aux=True)
        (loss, stats), grads, comm = averaged(comm, model, x, y)
        optimizer.update(model, grads)
        nnx.update(model, jax.tree.map(lambda x: jnp.mean(x, axis=0), stats))
        return loss, comm

    x, losses = INPUTS[:, :3] + 1, []
    for _ in range(30):
        loss, comm = step(model, optimizer, comm, x, x[:, :1])
        losses.append(float(loss))
    assert losses[-1] < 0.1 * losses[0]
    seen = (1 - 0.99**30) * x.mean(axis=0)  # a running mean
    np.testing.assert_allclose(model.norm.mean[...], seen, rtol=1e-4)


def test_equinox_models_are_taken_as_they_are():
    """Activation functions and whole numbers are part of them, and have no gradient."""
    model = (eqx.nn.MLP(3, 1, 8, 1, key=jax.random.key(0)), jnp.int32(2))
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    comm = dp.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_value_and_grad
    def loss_and_grads(model: Any, x: Any, y: Any) -> jax.Array:
        net, factor = model
        return jnp.mean(jnp.square(jnp.float32(factor) * jax.vmap(net)(x) - y))

    @eqx.filter_jit
    def step(model: Any, comm: Any, x: Any, y: Any) -> Any:
        loss, grads, comm = dp.averaged(loss_and_grads)(comm, model, x, y)
        rates = jax.tree.map(lambda g: -0.05 * g, grads)
        return eqx.apply_updates(model, rates), comm, loss

    losses = []
    for _ in range(30):
        model, comm, loss = step(model, comm, INPUTS[:, :3], INPUTS[:, :1])
        losses.append(float(loss))
    assert losses[-1] < 0.2 * losses[0]
    assert model[1] == 2


def test_a_mesh_of_explicit_axes():
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    specs = jax.tree.map(lambda _: P(), PARAMS)
    specs["in"] = SPECS["in"]
    dp = jaxcomp.data_parallel(WHOLE, mesh)

    def loss_fn(params: Any, inputs: Any, targets: Any) -> Any:
        # jax wants to be told what becomes of the axis that is summed over.
        kernel = jax.sharding.reshard(params["in"]["kernel"], P())
        bias = jax.sharding.reshard(params["in"]["bias"], P())
        whole = {**params, "in": {"kernel": kernel, "bias": bias}}
        return error_of(whole, inputs, targets)

    params = placed(mesh, specs)
    step = jax.jit(dp.value_and_grad(loss_fn))
    comm = dp.init(params)
    loss, grads, comm = step(comm, params, *batch(mesh))
    assert float(loss) == pytest.approx(float(error_of(PARAMS, INPUTS, TARGETS)))
    assert grads["in"]["kernel"].sharding.spec == P(None, "model")


# --- What is refused --------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"w": np.ones(3), "p": 0.5}, r"p is a float, and no array.*eqx\.filter"),
        ({"w": np.ones(3), "n": np.int32(3)}, "n is of int32, and has no gradient"),
    ],
)
def test_what_has_no_gradient_is_refused_by_name(params, message):
    with pytest.raises(TypeError, match=message):
        jaxcomp.data_parallel(SIGNS, BY_DATA).init(params)


def test_a_loss_that_closes_over_its_batch_is_refused():
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    params, rows = jnp.zeros(3), jnp.ones((4, 3))
    with pytest.raises(ValueError, match="no batch is given: a loss that closes over"):
        dp.value_and_grad(lambda p: product(p, rows))(dp.init(params), params)


def test_arguments_in_another_order_are_refused():
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    step, params = dp.value_and_grad(product), jnp.zeros(3)
    comm = dp.init(params)
    for args in [(params, comm, params), (params,), (comm,)]:
        with pytest.raises(TypeError, match=r"call it as \(comm, params, \*batch\)"):
            step(*args)


def test_params_cut_over_the_data_are_refused_with_the_reason():
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    cut = jax.device_put(jnp.zeros(8), NamedSharding(BY_DATA, P("data")))
    with pytest.raises(
        ValueError, match=r"a/w is cut over 'data'.*not sent of the whole"
    ):
        dp.init({"a": {"w": cut}})


def test_params_of_another_mesh_are_refused():
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    with pytest.raises(ValueError, match="is not on Mesh"):
        dp.init(placed())


@pytest.mark.parametrize(
    ("exchange", "axis", "message"),
    [
        ("workers", "data", r"over 'workers'.*make_exchange\(..., axis='data'\)"),
        ("batch", "batch", "no axis 'batch'. Valid: data, model"),
        ("data", ("data", "model"), r"make_exchange\(..., axis=\('data', 'model'\)\)"),
    ],
)
def test_axes_have_to_be_those_of_the_mesh(exchange, axis, message):
    built = jaxcomp.make_exchange(compressor="sign", axis=exchange)
    with pytest.raises(ValueError, match=message):
        jaxcomp.data_parallel(built, BY_MODEL, axis)


@pytest.mark.parametrize(
    ("rows", "in_axes", "message"),
    [
        (jnp.zeros((6, 2)), 0, r"\(6, 2\), does not divide over 4 workers.*in_axes"),
        (jnp.float32(1), 0, r"\(\), does not divide over 4 workers"),
        (jnp.zeros((4, 2)), 1, "holds 0 and None, not 1"),
    ],
)
def test_batches_have_to_divide(rows, in_axes, message):
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    params = jnp.zeros(2)
    call = dp.value_and_grad(product, in_axes=in_axes)
    with pytest.raises(ValueError, match=message):
        call(dp.init(params), params, rows)


def test_comm_is_for_the_params_that_it_was_made_for():
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    comm = dp.init((jnp.zeros(2), jnp.zeros(2)))
    with pytest.raises(ValueError, match="are 1 tensors, and comm was made for 2"):
        dp.value_and_grad(product)(comm, jnp.zeros(2), jnp.zeros((4, 2)))


def test_init_is_called_outside_jit():
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    with pytest.raises(TypeError, match="call it outside"):
        jax.jit(dp.init)(jnp.zeros(2))
