"""The step of one worker: huge gradients, averaged weights, loss scales."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import parallel, training
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import PerWorker
from jaxcomp.training import tasks
from jaxcomp.training.checkpoints import make_resize
from jaxcomp.training.running_metrics import check_applied, step_figures
from jaxcomp.training.state import (
    UNSCALED,
    ScaleState,
    TrainState,
    dynamic,
    init_state,
    make,
    static,
    value_and_grad,
)
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks.classification import classifier
from tests.tiers import tiers
from tests.training.small import built, rows, small_config


class Steep:
    """Logits that stand still and a gradient of 1e20, whose square is no float32."""

    def apply(self, variables, images, train, mutable, rngs):
        return 1e20 * variables["params"]["w"][None] * images, {}


def test_a_huge_gradient_is_a_number_like_any_other():
    tx = optax.chain(
        jaxcomp.distributed(jaxcomp.make_exchange("exact", memory="none")),
        optax.sgd(1e-20),
    )
    params = {"w": jnp.zeros(2)}
    state = TrainState(params, {}, {}, tx.init(params))
    none = (np.zeros((0, 2)), np.zeros(0))
    as_it_is = {"augment": lambda x, key: x, "normalize": lambda x: x}
    task = classifier(Steep(), none, none, lambda epoch: np.zeros(0), **as_it_is)
    step = make_train_step(task, tx, seed=0, axis="workers")
    images, labels = jnp.ones((2, 4, 2)), jnp.zeros((2, 4), jnp.int32)
    mapped = jax.jit(jax.vmap(step, in_axes=(None, 0, 0), axis_name="workers"))
    new, metrics = mapped(state, images, labels)
    assert metrics.applied.all()
    np.testing.assert_allclose(metrics.gradient_norms, np.full((2, 1), 7.0711e19), 1e-4)
    np.testing.assert_allclose(new.params["w"], [[0.5, -0.5]] * 2, rtol=1e-5)


# --- Loss scales: what they leave alone, what an overflow does, a ---------------------

HALF: dict[str, Any] = {
    "compute_dtype": "float16",
    "mapper": "vmap",
    "model": "mlp(hidden=[8])",
}


def after(scale, state, *applied):
    for one in applied:
        state = scale.after(state, jnp.bool_(one))
    return float(state.scale), int(state.steps)


def test_it_halves_after_a_bad_step_and_doubles_after_good_ones():
    scale = dynamic(start=8, every=3)
    start = scale.init()
    assert after(scale, start) == (8, 0)
    assert after(scale, start, True, True) == (8, 2)
    assert after(scale, start, True, True, True) == (16, 0)
    assert after(scale, start, True, True, False) == (4, 0)
    assert after(scale, start, True, False, True, True) == (4, 2)


def test_it_has_a_least_and_a_largest_value():
    scale = dynamic(start=1, every=1)
    assert after(scale, scale.init(), False) == (1, 0)
    assert after(scale, ScaleState(jnp.float32(2**24), jnp.int32(0)), True)[0] == 2**24


@pytest.mark.parametrize(
    "spec", ["static(scale=0)", "dynamic(start=0.5)", "dynamic(every=0)", "loss", "3"]
)
def test_bad_scales_are_refused(spec):
    with pytest.raises(UserError):
        make(spec, "float16")


def test_half_precision_without_a_scale_is_refused():
    with pytest.raises(UserError, match="set loss_scale to 'dynamic'"):
        built(small_config(**HALF))


def test_a_small_gradient_survives_and_the_loss_is_the_plain_one():
    """1e-8 is no float16: without a scale its gradient is zero."""

    def loss(x):
        half = x.astype(jnp.float16) * jnp.float16(1)
        return jnp.float32(1e-8) * half.astype(jnp.float32), "aux"

    for factor, expected in [(None, 0.0), (1.0, 0.0), (4096.0, 1e-8)]:
        factor = None if factor is None else jnp.float32(factor)
        (value, aux), gradient = value_and_grad(loss, factor)(jnp.float32(1))
        assert (float(value), aux) == (pytest.approx(1e-8), "aux")
        assert float(gradient) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_every_scale_gives_the_plain_gradient(dtype):
    """To the bit, or none at all: what float16 cannot hold is not finite, never 0."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=50), dtype)

    def loss(x):
        return jnp.sum((x * jnp.abs(x)).astype(jnp.float32)) / 512, None

    (value, _), plain = value_and_grad(loss, None)(x)
    for exponent in range(0, 25, 4):
        # Not compiled, as XLA may keep more digits than a dtype has.
        (scaled, _), gradient = value_and_grad(loss, jnp.float32(2**exponent))(x)
        assert scaled == value
        assert gradient.dtype == dtype
        held = np.isfinite(gradient)
        np.testing.assert_array_equal(gradient[held], plain[held])
        assert held.all() or (dtype == jnp.float16 and held.any())


# --- One step, of a model whose gradient can overflow ---------------------------------


def task_of(limit: float, dtype: Any = jnp.float32, of_loss: Any = jnp.float32) -> Any:
    """A task whose backward pass overflows beyond `limit`, as float16 does.

    Args:
      limit: of a gradient.
      dtype: of the parameters.
      of_loss: dtype of the loss.
    """

    @jax.custom_vjp
    def narrow(x):
        return x

    def backward(_, g):
        return (jnp.where(jnp.abs(g) > limit, jnp.inf, g),)

    narrow.defvjp(lambda x: (x, None), backward)

    def loss(params, stats, carry, batch, key):
        [target] = batch
        value = jnp.sum(narrow(params["w"]) * jnp.mean(target, 0)).astype(of_loss)
        return value, tasks.Learnt(stats, carry, jnp.float32(0))

    rows_of = np.zeros((8, 3), np.float32)
    return tasks.Task(
        model="narrow",
        data="rows",
        train=(rows_of,),
        test=(rows_of,),
        shares=lambda epoch: np.zeros((1, 2, 1), int),
        init=lambda key: tasks.Variables({"w": jnp.ones(3, dtype)}, {}),
        loss=loss,
        score=None,  # pyright: ignore
    )


def stepped(batches, scale, mixer=False, accumulate=1, mapper="vmap", **kinds):
    """The states after each of some batches [workers, examples, 3], and the figures."""
    task = task_of(**{"limit": 100.0, **kinds})
    if mixer:
        ring = jaxcomp.make_mixer("d_psgd", "ring", workers=2)
        tx = optax.chain(optax.sgd(0.1), jaxcomp.mixing(ring))
    else:
        exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.4)")
        tx = optax.chain(jaxcomp.distributed(exchange), optax.sgd(0.1))
    workers = parallel.setup(2, mapper)
    fresh = init_state(task, tx, seed=0, examples=1, own_models=mixer, scale=scale)
    state = parallel.spread(fresh, workers)
    step = make_train_step(
        task, tx, seed=0, axis=workers.axis, accumulate=accumulate, scale=scale
    )
    axes = parallel.axes(state)
    mapped = parallel.map_step(step, workers, in_axes=(axes, 0), out_axes=(axes, 0))
    states, figures = [], []
    for batch in batches:
        state, metrics = mapped(state, parallel.place(np.float32(batch), workers, 0))
        states.append(parallel.to_host(state))
        figures.append(parallel.to_host(metrics))
    return states, figures


USUAL = np.ones((2, 2, 3)) * [[[1, 2, 3]], [[-1, 2, 0.5]]]
BIG = USUAL * [[[1]], [[30]]]  # only worker 1's gradient is large
BAD = USUAL * [[[1]], [[np.nan]]]


@pytest.mark.parametrize("mapper", tiers(["vmap", "pmap", "shard_map"], "vmap".__eq__))
def test_an_overflow_of_one_worker_is_skipped_by_all_and_halves_the_scale(mapper):
    states, figures = stepped(
        [USUAL, BIG, BIG, USUAL], dynamic(start=8, every=2), mapper=mapper
    )
    # At 8 and at 4 the gradient of 60 to 90 is too large; at 2 it passes.
    assert [float(s.loss_scale.scale) for s in states] == [8, 4, 2, 2]
    assert [bool(np.all(f.applied)) for f in figures] == [True, False, False, True]
    told = [step_figures(f) for f in figures]
    assert [f["overflowed"] for f in told] == [0, 1, 1, 0]
    assert [f["skipped"] for f in told] == [0, 0, 0, 0]
    assert [f["loss_scale"] for f in told] == [8, 8, 4, 2]
    for before, later in zip(states[:2], states[1:3], strict=True):
        np.testing.assert_array_equal(before.params["w"], later.params["w"])
        assert int(later.step) == int(before.step) + 1
    for x in jax.tree.leaves(states[-1]._replace(opt_state=())):
        assert np.isfinite(x).all()


def test_a_nan_is_none_though_the_other_workers_take_it_for_an_overflow():
    _, [figures] = stepped([BIG], static(8))
    told = step_figures(figures)
    assert told["skipped"] == 1
    assert "overflowed" not in told
    _, [figures] = stepped([BAD], dynamic(start=8))
    told = step_figures(figures)
    assert (told["skipped"], told["overflowed"]) == (1, 0)
    with pytest.raises(training.NonFinite):
        check_applied(0, figures, ["w"])


def test_an_overflow_does_not_stop_a_run_before_the_least_scale():
    states, figures = stepped([BIG * 100] * 3, dynamic(start=2))
    assert float(states[-1].loss_scale.scale) == 1
    check_applied(0, figures[0], ["w"])
    with pytest.raises(training.NonFinite, match="worker 0: w has norm inf"):
        check_applied(1, figures[1], ["w"])


def test_a_worker_with_a_model_of_its_own_has_a_scale_of_its_own():
    states, figures = stepped([USUAL, BIG], dynamic(start=8, every=9), mixer=True)
    np.testing.assert_array_equal(states[-1].loss_scale.value.scale, [8, 4])
    np.testing.assert_array_equal(states[-1].loss_scale.value.steps, [2, 0])
    assert step_figures(figures[-1])["overflowed"] == 0.5
    assert step_figures(figures[-1])["skipped"] == 0


def test_other_numbers_of_workers_go_on_with_the_least_scale():
    setup = built(small_config(mapper="vmap"))
    scale = PerWorker(ScaleState(jnp.array([8.0, 2, 4, 4]), jnp.array([3, 0, 1, 1])))
    state = parallel.to_host(parallel.spread(setup.fresh(), setup.workers))
    new = make_resize(setup, allowed=True)(state._replace(loss_scale=scale), 2)
    np.testing.assert_array_equal(new.loss_scale.value.scale, [2, 2])
    np.testing.assert_array_equal(new.loss_scale.value.steps, [0, 0])


def test_parts_of_a_batch_are_summed_beyond_the_range_of_the_loss():
    """8 parts with losses up to 24,000 make a sum that is none in float16."""
    batch = USUAL.repeat(4, axis=1) * 4000
    kinds = {"of_loss": jnp.float16, "limit": 1e9}
    _, [figures] = stepped([batch], UNSCALED, accumulate=8, **kinds)
    np.testing.assert_allclose(figures.loss, [24000, 6000], rtol=1e-3)
    assert np.all(figures.applied)


# --- Whole runs -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """From the largest scale, which overflows, with a look at every step."""
    folder = tmp_path_factory.mktemp("half")
    return training.train_and_evaluate(half_config(), folder)


def half_config(**changes):
    scale = "dynamic(start=16777216, every=3)"
    return small_config(loss_scale=scale, log_every=1, **HALF, **changes)


def test_a_run_in_float16_learns_and_keeps_float32(finished):
    parts = finished.state.params, finished.state.stats, finished.state.opt_state
    floats = [x.dtype for x in jax.tree.leaves(parts) if x.dtype.kind == "f"]
    assert set(floats) == {jnp.dtype("float32")}
    losses = [float(r["train_loss"]) for r in rows(finished.folder / "metrics.csv")]
    assert losses[1] < losses[0]


def test_the_tables_tell_overflows_from_bad_steps(finished):
    steps = rows(finished.folder / "steps.csv")
    overflowed = [float(row["overflowed"]) for row in steps]
    scales = [float(row["loss_scale"]) for row in steps]
    assert overflowed[0] == 1
    assert set(overflowed) == {0, 1}
    for now, then, bad in zip(scales, scales[1:], overflowed[:-1], strict=False):
        assert then in ([now / 2] if bad else [now, 2 * now])
    epochs = rows(finished.folder / "metrics.csv")
    assert sum(float(r["overflowed_steps"]) for r in epochs) == sum(overflowed)
    assert [float(r["skipped_steps"]) for r in epochs] == [0, 0]
    assert float(epochs[-1]["loss_scale"]) == scales[-1]
    assert "overflowed" in training.summary(finished)
