"""`decentralised` under jit: the numbers of pmap, and what a model axis costs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.core.types import Clock, is_clock
from tests.every_method import MIXERS, WORKERS, mixer, trees
from tests.test_data_parallel import (
    BY_MODEL,
    INPUTS,
    PARAMS,
    SPECS,
    TARGETS,
    Loop,
    batch,
    check_loop,
    check_replicas,
    equal,
    error_of,
    loop_of,
    placed,
    product,
)
from tests.tiers import tiers

pytestmark = pytest.mark.usefixtures("in_time")
BY_DATA = Mesh(np.array(jax.devices()[:WORKERS]), "workers")


def choco(workers: int, compressor: str, axis: Any = "data", **more: Any) -> Any:
    return jaxcomp.make_mixer(
        "choco", "ring", workers, compressor=compressor, axis=axis, **more
    )


def stacks(tree: Any, mesh: Mesh, *spec: Any) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))


# --- The same as under pmap -------------------------------------------------------

RING = functools.partial(jaxcomp.make_mixer, topology="ring", workers=WORKERS)
METHODS = {
    "choco": RING("choco", compressor="sign"),
    "d_psgd": jaxcomp.make_mixer("d_psgd", "exponential(one_peer=True)", WORKERS),
    "diloco": jaxcomp.make_mixer(
        "diloco(h=2)", exchange="two_phase", compressor="sign"
    ),
    "choco and noise": RING("choco(gamma=0.1)", compressor="random_k(keep=0.3)"),
    "diloco in fragments": jaxcomp.make_mixer(
        "diloco(h=3, fragments=2)",
        exchange="gather",
        compressor="qsgd",
        memory="error_feedback(allow=True)",
    ),
    **{f"{name} of the registry": mixer(name) for name in MIXERS},
}


@pytest.mark.parametrize(
    "name", tiers(METHODS, lambda name: name in ("choco", "diloco"))
)
def test_models_and_state_are_those_of_pmap(name):
    """From different starts, with links that see one worker's tree."""
    links = optax.clip_by_global_norm(5.0), optax.sgd(0.1, momentum=0.9)
    starts, inputs = trees(WORKERS), [trees(WORKERS, 1, seed=s) for s in (1, 2, 3)]

    tx = optax.chain(*links, jaxcomp.mixing(METHODS[name], seed=3))

    def of_worker(model: Any, state: Any, rows: Any) -> Any:
        loss, grads = jax.value_and_grad(product)(model, rows)
        updates, state = tx.update(grads, state, model)
        return optax.apply_updates(model, updates), state, loss

    crew = parallel.setup(WORKERS, "pmap")
    start = jax.jit(jax.vmap(tx.init, axis_name="workers"))
    given = parallel.place((starts, start(starts)), crew, 0)
    mapped = parallel.map_step(of_worker, crew, in_axes=0, out_axes=0)

    dec = jaxcomp.decentralised(METHODS[name], BY_DATA, "workers", seed=3)
    chain = dec.chain(*links)

    @jax.jit
    def step(models: Any, state: Any, rows: Any) -> Any:
        losses, grads = dec.value_and_grad(product)(models, rows)
        updates, state = chain.update(grads, state, models)
        return optax.apply_updates(models, updates), state, losses

    ours: Any = (starts, chain.init(starts))
    for rows in inputs:
        *given, expected = mapped(*given, parallel.place(rows, crew, 0))
        *ours, losses = step(*ours, jax.tree.map(lambda x: x[:, 0], rows))
        close(expected, losses)
        close(given[0], ours[0])
    close(given[1][-1], with_clocks_for_all(ours[1].comm.links[0]))


def close(a: Any, b: Any) -> None:
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
        *map(parallel.to_host, (a, b)),
    )


def with_clocks_for_all(state: Any) -> Any:
    def copied(node: Any) -> Any:
        return Clock(jnp.full(WORKERS, node.step)) if is_clock(node) else node

    return jax.tree.map(copied, state, is_leaf=is_clock)


# --- A model axis -----------------------------------------------------------------

STEPS = 60
# One vector of all tensors: what is sent of one of them depends on the others.
WHOLE = choco(2, "top_k(keep=0.2)", scope="whole_tree")
DEC = jaxcomp.decentralised(WHOLE, BY_MODEL)
LINKS = (
    optax.apply_if_finite(
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)), 3
    ),
)


@functools.cache
def loop() -> Loop:
    tx = DEC.chain(*LINKS)

    def step(state: Any, *batch: Any) -> Any:
        models, opt_state = state
        losses, grads = DEC.value_and_grad(error_of)(models, *batch)
        updates, opt_state = tx.update(grads, opt_state, models)
        return (optax.apply_updates(models, updates), opt_state), losses

    models = DEC.spread(placed())
    return loop_of(step, (models, tx.init(models)))


@functools.cache
def trained() -> Any:
    return loop().run(loop().fresh(), STEPS)


def test_it_learns_and_workers_stay_close():
    (models, _), losses = trained()
    assert losses.shape == (2,)
    start = float(error_of(PARAMS, INPUTS, TARGETS))
    mean = jax.tree.map(lambda x: x.mean(0), models)
    assert float(error_of(mean, INPUTS, TARGETS)) < 0.05 * start
    for model in jax.tree.leaves(models):
        assert np.ptp(model, axis=0).any(), "each worker has its own"
    jax.tree.map(lambda x, own: x.sharding == own.sharding, mean, placed())


def test_a_model_axis_carries_what_it_did_and_the_data_axis_messages_alone():
    """Two: one of all shards, and one of what is replicated."""
    plain = jax.jit(jax.value_and_grad(error_of)).lower(placed(), *batch())
    ours = loop().step.lower(loop().fresh(), *batch())
    dense, sent = (
        wire.collective_bytes(x.compile(), by_axis=BY_MODEL) for x in (plain, ours)
    )
    # The links': of each tensor that is cut its norm, and whether it is finite.
    more = {"all-reduce": dense["model"]["all-reduce"] + 3 * (4 + 1)}
    assert sent["model"] == {**dense["model"], **more}

    shards = {"in": {"kernel": (16, 32), "bias": (32,)}, "out": {"kernel": (32, 4)}}
    messages = []
    for part in (shards, (4,)):
        tree = jax.tree.map(jnp.zeros, part, is_leaf=lambda x: isinstance(x, tuple))
        messages += wire.traced_collectives(
            lambda x, state: WHOLE.mix(x, x, state, jax.random.key(0), 0).updates,
            *(tree, WHOLE.init(tree)),
            axis="data",
            workers=2,
        )
    assert len(messages) == 2
    assert sent["data"] == wire.collective_bytes(messages)
    assert sum(sent["data"].values()) < sum(dense["data"].values()) / 3


def test_models_moments_and_estimates_live_where_their_shards_do():
    for models, opt_state in (loop().fresh(), trained()[0]):
        momenta = optax.tree.get(opt_state.own, "trace")
        publics = [link.exchange.public for link in opt_state.comm.links]
        public = jax.tree.map(
            lambda *found: next(x for x in found if x is not None),
            *publics,
            is_leaf=lambda x: x is None,
        )
        for tree in (models, momenta, public):
            jax.tree.map(
                lambda x, spec: check_sharding(x, P("data", *spec)), tree, SPECS
            )
        check_sharding(optax.tree.get(opt_state.own, "last_finite"), P("data"))


def check_sharding(x: jax.Array, spec: P) -> None:
    assert x.sharding.is_equivalent_to(NamedSharding(BY_MODEL, spec), x.ndim)


def test_replicas_stay_equal():
    check_replicas(trained()[0])


def test_a_loop_is_traced_once_donates_and_can_be_restored():
    def kept(state: Any) -> Any:
        models, (own, comm) = state
        momenta = optax.tree.get(own, "trace")
        return models, momenta, [link.exchange for link in comm.links]

    check_loop(loop(), kept)


def test_a_worker_with_a_bad_gradient_learns_nothing_and_talks_as_usual():
    state, _ = loop().run(loop().fresh(), 3)
    models, opt_state = jax.device_get(state)
    bad = INPUTS.copy()
    bad[3] = np.nan
    after, losses = loop().run(state, 1, stacks((bad, TARGETS), BY_MODEL, "data"))
    assert np.isnan(losses).tolist() == [True, False]
    equal(optax.tree.get(opt_state.own, "total_notfinite"), [0, 0])
    equal(optax.tree.get(after[1].own, "total_notfinite"), [1, 0])
    assert np.isfinite(np.concatenate([x.ravel() for x in leaves_of(after)])).all()
    for old, new in zip(leaves_of(models), leaves_of(after[0]), strict=True):
        assert (old[0] != new[0]).any(), "neighbours pull it on"
    (sent, _) = (link.info.value.sends for link in after[1].comm.links)
    assert np.asarray(sent).all()


def leaves_of(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree) if x.dtype == np.float32]


def test_how_a_model_is_cut_changes_no_numbers():
    """Nor do starts that differ; several axes may share the data."""
    d_psgd = functools.partial(jaxcomp.make_mixer, "d_psgd", "ring", WORKERS)
    cube = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "model", "fsdp"))
    starts = trees(WORKERS)
    cut = {"kernel": P(("data", "fsdp"), "model"), "bias": P()}
    cut = jax.device_put(
        starts, jax.tree.map(lambda spec: NamedSharding(cube, spec), cut)
    )
    found = []
    for mesh, axis, models in [
        (BY_DATA, "workers", stacks(starts, BY_DATA, "workers")),
        (cube, ("data", "fsdp"), cut),
    ]:
        tx = jaxcomp.decentralised(d_psgd(axis=axis), mesh, axis).chain(
            optax.clip_by_global_norm(1.0)
        )

        @jax.jit
        def step(models: Any, state: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(models, state, models)
            return optax.apply_updates(models, updates), state

        state = tx.init(models)
        for _ in range(3):
            models, state = step(models, state)
        found.append(models)
    close(*found)


# --- Other people's losses, states and meshes --------------------------------------


def test_what_a_loss_returns_is_each_workers_and_comes_back_to_it():
    dec = jaxcomp.decentralised(choco(4, "sign", "workers"), BY_DATA, "workers")
    models = dec.spread({"w": jnp.arange(3.0), "static": None})

    def loss_fn(params: Any, rows: Any, scale: Any, seen: Any) -> Any:
        assert seen["mean"].shape == (3,)
        seen = {"mean": seen["mean"] + rows[0], "worker": jax.lax.axis_index("workers")}
        return scale * jnp.sum(params["w"] * rows[0]), seen

    of_loss = dec.value_and_grad(loss_fn, has_aux=True, in_axes=(0, None, "own"))
    of_loss, rows = jax.jit(of_loss), jnp.arange(12.0).reshape(4, 3)
    (_, aux), _ = of_loss(models, rows, jnp.float32(2), {"mean": jnp.zeros((4, 3))})
    (losses, aux), grads = of_loss(models, rows, jnp.float32(2), aux)
    equal(aux["worker"], range(4))
    equal(aux["mean"], 2 * rows)
    equal(grads["w"], 2 * rows)
    assert grads["static"] is None
    equal(losses, jnp.sum(grads["w"] * models["w"], axis=1))


def test_links_see_their_own_workers_loss():
    def lowest(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        assert extra["value"].shape == ()
        return updates, jnp.minimum(state, extra["value"])

    link = optax.GradientTransformationExtraArgs(lambda params: jnp.float32(1), lowest)
    dec = jaxcomp.decentralised(choco(4, "sign", "workers"), BY_DATA, "workers")
    tx, models = dec.chain(link), dec.spread(jnp.zeros(3))
    losses = jnp.array([3.0, -1.0, 0.5, jnp.inf])
    step = jax.jit(tx.update)
    _, state = step(models, tx.init(models), models, value=losses)
    equal(jax.tree.leaves(state.own)[0], [1.0, -1.0, 0.5, 1.0])
    with pytest.raises(
        ValueError, match=r"value= of update has the shape \(\): it has"
    ):
        step(models, state, models, value=jnp.float32(1))


def test_a_mesh_of_explicit_axes():
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    dec = jaxcomp.decentralised(WHOLE, mesh)
    tx = dec.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    models = dec.spread(stacks({"w": np.ones((4, 2))}, mesh, None, "model"))
    rows = stacks(np.eye(4), mesh, "data")

    @jax.jit
    def step(models: Any, state: Any, rows: Any) -> Any:
        loss_fn = lambda p, x: jnp.sum(jnp.square(x @ p["w"]))  # noqa: E731
        losses, grads = dec.value_and_grad(loss_fn)(models, rows)
        updates, state = tx.update(grads, state, models)
        return optax.apply_updates(models, updates), state, losses

    models, _, losses = step(models, tx.init(models), rows)
    equal(losses, [4.0, 4.0])
    assert models["w"].sharding.spec == P("data", None, "model")


# --- What is refused --------------------------------------------------------------


def lying(*spec: Any) -> Any:
    return {"w": stacks(np.zeros((2, 2)), BY_MODEL, *spec)}


def on_rows(shape: tuple[int, ...], in_axes: Any) -> Any:
    rows = jnp.zeros(shape)
    return DEC.value_and_grad(product, in_axes=in_axes)(jnp.zeros((2, 2)), rows)


def built(mixer: Any, axis: Any) -> Any:
    return jaxcomp.decentralised(mixer, BY_MODEL, axis)


BOTH = ("data", "model")
ONE = {"w": np.zeros(3, np.float32)}
MODELS = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: built(choco(2, "sign", "workers"), "data"),
            *(ValueError, r"over 'workers'.*make_mixer\(.*'data'"),
        ),
        (
            lambda: built(choco(2, "sign", "batch"), "batch"),
            *(ValueError, "no axis 'batch'. Valid: data, model"),
        ),
        (
            lambda: built(choco(4, "sign"), "data"),
            *(ValueError, r"4 nodes, and 'data' has 2.*workers=2\)"),
        ),
        (
            lambda: built(choco(2, "sign", BOTH), BOTH),
            *(ValueError, r"2 nodes, and \('data', 'model'\) has 4 workers"),
        ),
        (
            lambda: built(jaxcomp.make_exchange(axis="data"), "data"),
            *(TypeError, "takes a Mixer from make_mixer"),
        ),
        (
            lambda: DEC.spread({"a": lying("data")}),
            *(ValueError, r"a/w is cut over 'data'.*model of its own"),
        ),
        (
            lambda: DEC.chain().init(lying("model")),
            *(ValueError, "w is cut by .*first axis is that of the work"),
        ),
        (
            lambda: DEC.chain().init(lying(None, "data")),
            *(ValueError, "w is cut by .*first axis is that of the work"),
        ),
        (lambda: DEC.chain().init(ONE), ValueError, r"w has the .*\(3,\).*dec\.spread"),
        (
            lambda: DEC.value_and_grad(product)(ONE),
            *(ValueError, r"w has the shape \(3,\).*dec\.spread"),
        ),
        (lambda: on_rows((3, 2), 0), ValueError, r"\(3, 2\), does not divide over 2 w"),
        (lambda: on_rows((4, 2), "own"), ValueError, r"\(4, 2\), has no axis of 2 wor"),
        (lambda: on_rows((4, 2), 1), ValueError, "holds 0, 'own' and None, not 1"),
        (lambda: jax.jit(DEC.spread)(MODELS), TypeError, "call it outside"),
        (lambda: jax.jit(DEC.chain().init)(MODELS), TypeError, "call it outside"),
        (
            lambda: DEC.chain().update(MODELS, DEC.chain().init(MODELS)),
            *(TypeError, "needs the models: a mixer"),
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
