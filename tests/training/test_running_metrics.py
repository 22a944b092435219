"""Figures of steps: a residual that grows, a loss that is too large."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import make_exchange, training
from jaxcomp.cli import main
from jaxcomp.training.running_metrics import Growth, check_loss
from jaxcomp.training.step import StepMetrics
from tests.training.small import rows, small_config


def seen(residuals, gradients=None):
    """The number of the first step at which growth is told; None: at none."""
    growth = Growth()
    norms = np.ones(len(residuals)) if gradients is None else gradients
    for step, pair in enumerate(zip(norms, residuals, strict=True), start=1):
        growth = growth.after(step, *map(float, pair))
        if growth.grows:
            return step
    return None


STEPS = np.arange(1, 5001)


@pytest.mark.parametrize(
    "residuals",
    [
        np.zeros(5000),
        10.0 * STEPS,  # everything is kept
        900 * (1 - np.exp(-STEPS / 300)),  # top-k of 0.1 per cent
        np.where(STEPS < 2000, 3.0, 900.0),  # fewer are kept from a step on
    ],
)
def test_what_fills_up_is_no_growth(residuals):
    assert seen(residuals) is None


@pytest.mark.parametrize("rate", [0.01, 0.05, 1.0, 5.0])
def test_what_feeds_itself_is(rate):
    """Before it is larger than anybody has use for, and whatever the gradient does."""
    residuals = np.exp(np.minimum(rate * STEPS, 80.0))
    assert seen(residuals) <= 8 + 12 / rate
    assert seen(residuals, gradients=1 + 1 / STEPS) is not None


def test_a_gradient_that_vanishes_is_no_growth():
    """At the end of a training what is kept is old, and large against the gradient."""
    assert seen(np.full(5000, 50.0), gradients=np.exp(-STEPS / 200)) is None


def residuals_of(compressor, steps=512, size=2000):
    exchange = make_exchange("gather", compressor, "error_feedback(allow=True)")

    def step(state, key):
        draw, own = jax.random.split(key)
        gradient = jax.random.normal(draw, (1, size)) / jnp.sqrt(size)
        state, norm = jax.vmap(
            lambda x: exchange.average(x, state, own)[2:4], axis_name="workers"
        )(gradient)
        return jax.tree.map(lambda x: x[0], state), norm.residual_norm[0]

    keys = jax.random.split(jax.random.key(0), steps)
    fresh = exchange.init(jnp.zeros(size))
    return np.asarray(jax.jit(lambda s: jax.lax.scan(step, s, keys)[1])(fresh))


def test_of_real_compressors():
    assert seen(residuals_of("qsgd(levels=7, bucket=None)")) is not None
    assert seen(residuals_of("qsgd(levels=7, bucket=None, damped=True)")) is None
    assert seen(residuals_of("top_k(keep=0.001)")) is None


def test_a_run_tells_it_everywhere(tmp_path, capsys):
    """On the console, in the table and at the top of the report."""
    config = small_config(
        compressor="qsgd(levels=1, bucket=None)",
        memory="error_feedback(allow=True)",
        scope="only_large(min_size=20)",
        clip="local(limit=1)",
        seed=1,  # with seed 0 it has grown a little less by the fifth row
    )
    training.train_and_evaluate(config, tmp_path)
    warnings = [li for li in capsys.readouterr().out.splitlines() if "WARNING" in li]
    assert len(warnings) == 1
    assert "grows without end" in warnings[0]
    assert rows(tmp_path / "metrics.csv")[-1]["residual_grows"] == "1"
    assert main(["report", str(tmp_path)]) == 0
    assert 'role="alert"' in (tmp_path / "report.html").read_text()


# --- A loss above the limit ends a run; what was written before s ---------------------


def metrics(losses, applied=True):
    usual = dict.fromkeys(StepMetrics._fields, np.zeros(len(losses)))
    taken = np.full(len(losses), applied)
    return StepMetrics(**{**usual, "loss": np.float32(losses), "applied": taken})


def test_the_largest_loss_of_a_worker_counts():
    check_loss(4, metrics([1.0, 2.0]), limit=2.0)
    with pytest.raises(training.Diverged) as error:
        check_loss(4, metrics([1.0, 2.5]), limit=2.0)
    assert str(error.value) == (
        "step 5 has diverged: a worker's loss is 2.5, above loss_limit=2"
    )
    assert error.value.exit_code == training.NonFinite.exit_code == 1


def test_without_a_limit_no_loss_is_too_large():
    check_loss(0, metrics([1e30]), limit=0.0)


def test_a_step_that_was_left_out_does_not_count():
    check_loss(0, metrics([np.inf, 1e9], applied=False), limit=2.0)
    check_loss(0, metrics([np.nan, np.nan], applied=False), limit=2.0)
