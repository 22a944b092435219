"""`data_parallel` under jit: the numbers of pmap, and what a model axis costs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.core.types import ticked
from jaxcomp.transforms.distributed import distributed
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

    def run(self, state: Any, count: int, given: Any = None) -> tuple[Any, Any]:
        found = None
        for _ in range(count):
            state, found = self.step(state, *(given or batch()))
            jax.block_until_ready(found)
        return state, found


def loop_of(step: Any, state: Any) -> Loop:
    """A loop of (state, *batch) -> (state, what else the step returns)."""
    traces: list[int] = []

    def counted(*args: Any) -> Any:
        traces.append(1)
        return step(*args)

    shardings = jax.tree.map(lambda x: x.sharding, state)
    return Loop(
        *(jax.device_get(state), shardings, jax.jit(counted, donate_argnums=0), traces)
    )


@functools.cache
def loop() -> Loop:
    dp = jaxcomp.data_parallel(WHOLE, BY_MODEL)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))

    def step(state: Any, *batch: Any) -> Any:
        params, opt_state, comm = state
        loss, grads, comm = dp.value_and_grad(error_of)(comm, params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, comm), (grads, loss)

    params = placed()
    return loop_of(step, (params, tx.init(params), dp.init(params)))


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


def test_it_learns():
    _, (_, loss) = trained()
    assert loss < 0.01 * float(error_of(PARAMS, INPUTS, TARGETS))


def test_gradients_and_residuals_live_where_their_params_do():
    (params, _, comm), (grads, _) = trained()
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


def check_replicas(state: Any) -> None:
    """Also where what is sent of a tensor depends on others that are cut."""
    for array in jax.tree.leaves(state):
        pieces: dict[str, bytes] = {}
        for shard in array.addressable_shards:
            piece = np.asarray(shard.data).tobytes()
            assert pieces.setdefault(str(shard.index), piece) == piece


def check_loop(loop: Loop, kept: Any) -> None:
    """One trace, no copy of what is donated, and a restored run goes on to the bit."""
    state = loop.fresh()
    after, _ = loop.run(state, 3)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(kept(state)))
    assert jax.tree.map(lambda x: x.sharding, after) == loop.shardings
    restored = jax.device_put(jax.device_get(after), loop.shardings)
    equal(loop.run(restored, 5), loop.run(after, 5))
    assert len(loop.traces) == 1


def test_replicas_stay_equal():
    check_replicas(trained()[0])


def test_a_loop_is_traced_once_donates_and_can_be_restored():
    def kept(state: Any) -> Any:
        params, _, comm = state
        return params, [link.exchange for link in comm.links]

    check_loop(loop(), kept)


def test_a_bad_element_stops_the_devices_that_hold_other_shards():
    """All keep what they had not sent, as if the step had not been."""
    dp = jaxcomp.data_parallel(WHOLE, BY_MODEL)
    step = jax.jit(dp.value_and_grad(product))
    rows = jax.tree.map(lambda x: np.stack([x, x + 1]), PARAMS)
    _, _, before = step(dp.init(placed()), placed(), rows)
    rows["in"]["kernel"][0, 0, 0] = np.inf
    _, grads, after = step(before, placed(), rows)
    assert not np.isfinite(optax.tree.norm(grads))
    seen = {
        shard.device
        for grad in jax.tree.leaves(grads)
        for shard in grad.addressable_shards
        if np.isnan(shard.data).any()
    }
    assert seen == set(BY_MODEL.devices.flat)
    equal(after, ticked(before))


# --- Other people's trees, batches and meshes -------------------------------------


SIGNS = make("gather", "sign", "error_feedback")


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


def on_data(params: Any, *batch: Any, loss: Any = product, in_axes: Any = 0) -> Any:
    """A step with the state of these params."""
    dp = jaxcomp.data_parallel(SIGNS, BY_DATA)
    return dp.value_and_grad(loss, in_axes=in_axes)(dp.init(params), params, *batch)


def built(exchange: Any, axis: Any) -> Any:
    signs = jaxcomp.make_exchange(compressor="sign", axis=exchange)
    return jaxcomp.data_parallel(signs, BY_MODEL, axis)


def initialised(params: Any) -> Any:
    return jaxcomp.data_parallel(SIGNS, BY_DATA).init(params)


ROWS = np.zeros((4, 2), np.float32)
ZEROS = np.zeros(2, np.float32)
IN_ORDER = r"call it as \(comm, params, \*batch\)"
BATCHED = NamedSharding(BY_DATA, P("data"))
STEP = jaxcomp.data_parallel(SIGNS, BY_DATA).value_and_grad(product)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: initialised({"p": 0.5}), TypeError, r"p is a float, .*eqx\.filter"),
        (
            lambda: on_data(ZEROS, loss=lambda p: product(p, ROWS)),
            *(ValueError, "no batch is given: a loss that closes over"),
        ),
        (lambda: STEP(ZEROS, initialised(ZEROS), ZEROS), TypeError, IN_ORDER),
        (
            lambda: initialised({"a": {"w": jax.device_put(jnp.zeros(8), BATCHED)}}),
            *(ValueError, r"a/w is cut over 'data'.*not sent of the whole"),
        ),
        (lambda: initialised(placed()), ValueError, "is not on Mesh"),
        (
            lambda: built("workers", "data"),
            *(ValueError, r"over 'workers'.*make_exchange\(..., axis='data'\)"),
        ),
        (lambda: built("batch", "batch"), ValueError, "'batch'. Valid: data, model"),
        (
            lambda: built("data", ("data", "model")),
            *(ValueError, r"make_exchange\(..., axis=\('data', 'model'\)\)"),
        ),
        (
            lambda: on_data(ZEROS, np.zeros((6, 2))),
            *(ValueError, r"\(6, 2\), does not divide over 4 workers.*in_axes"),
        ),
        (
            lambda: on_data(ZEROS, ROWS, in_axes=1),
            *(ValueError, "holds 0 and None, not 1"),
        ),
        (
            lambda: STEP(initialised((ZEROS, ZEROS)), ZEROS, ROWS),
            *(ValueError, "are 1 tensors, and comm was made for 2"),
        ),
        (lambda: jax.jit(initialised)(ZEROS), TypeError, "call it outside"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
