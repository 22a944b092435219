"""One clock for the whole run: a step that is not applied moves everything alike.

Runs of the trainer's own step on a linear model, whose gradient NumPy knows too. One
worker's batch is NaN at some of the steps.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import parallel
from jaxcomp.core.types import Clock, is_clock, ticked
from jaxcomp.exchanges.budget import BudgetState
from jaxcomp.memory import REGISTRY as MEMORIES
from jaxcomp.training import optimizers, schedules
from jaxcomp.training.optimizers import OptimizerSetting, of_memory
from jaxcomp.training.schedules import Horizon, learning_rate
from jaxcomp.training.stages import Stage
from jaxcomp.training.state import TrainState
from jaxcomp.training.tasks.classification import classifier
from jaxcomp.transforms.optimizers import OneBitAdamState
from tests.exchanges.matrix import PAIRS, compiled, gradients
from tests.training.small import assert_same_state, built, small_config

WORKERS, EXAMPLES, FEATURES, CLASSES = 2, 4, 6, 3
STEPS, DENSE, DECAY = 8, 3, 0.01
HORIZON = Horizon(steps_per_epoch=3, batch_size=WORKERS * EXAMPLES)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(STEPS, WORKERS, EXAMPLES, FEATURES)).astype(np.float32)
LABELS = RNG.integers(CLASSES, size=(STEPS, WORKERS, EXAMPLES))
BAD = (1, 5)  # of the dense steps and of the others


@pytest.fixture(autouse=True)
def _promotion():
    """optax counts in integers and multiplies them by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class Linear(nn.Module):
    """Logits of one layer."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        return nn.Dense(CLASSES)(images)


def linear(config: Any, workers: Any) -> Any:
    """The task of three steps in an epoch."""
    images = IMAGES[:3].reshape(-1, FEATURES), LABELS[:3].ravel()
    return classifier(
        Linear(),
        train=images,
        test=images,
        shares=lambda epoch: np.arange(24).reshape(3, WORKERS, EXAMPLES),
        augment=lambda images, key: images,
        normalize=lambda images: images,
    )


@functools.cache
def program(**settings: Any) -> tuple[TrainState, Callable[[int], Any]]:
    """A fresh state, and the mapped step at a step."""
    usual: dict[str, Any] = {"task": f"{__name__}:linear", "mapper": "vmap"}
    usual |= {"batch_size": WORKERS * EXAMPLES, "train_for": f"{STEPS} steps"}
    usual |= {"warmup": "3 steps", "weight_decay": DECAY}
    setup = built(small_config(**usual, **settings))
    fresh = parallel.spread(setup.fresh(), setup.workers)
    axes = parallel.axes(fresh)

    @functools.cache
    def mapped(stage: Stage) -> Any:
        both = {"in_axes": (axes, 0, 0), "out_axes": (axes, 0)}
        return parallel.map_step(setup.step(stage), setup.workers, **both)

    return fresh, lambda number: mapped(setup.stages.at(number))


@functools.cache
def states(bad: tuple[int, ...] = BAD, **settings: Any) -> list[TrainState]:
    """What a run is before its first step and after each."""
    fresh, step_at = program(**settings)
    path = [fresh]
    for number in range(STEPS):
        images = IMAGES[number].copy()
        images[1] = np.nan if number in bad else images[1]
        state, metrics = step_at(number)(path[-1], images, LABELS[number])
        assert metrics.applied[1] == (number not in bad)
        path.append(state)
    return path


def found(state: Any, kind: Callable[[Any], bool]) -> list[Any]:
    return [x for x in jax.tree.leaves(state, is_leaf=kind) if kind(x)]


def rate_of(schedule: str) -> schedules.Schedule:
    return learning_rate(0.1, schedule, horizon=HORIZON, total=STEPS, warmup=3)


# Each memory is around one of them, so that both are tried.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "adamw": {"memory": "ef21"},
    "dgc_sgd": {"memory": "dgc(momentum=0.9)"},
    "lamb": {"memory": "none"},
    "lars": {"memory": "ef21_momentum", "optimizer": "lars(momentum=0)"},
    "one_bit_adam": {
        "memory": "shared_momentum(beta=0.9) | error_feedback",
        "dense_for": f"{DENSE} steps",
        "compressor": "sign",
    },
    "sgd": {"memory": "local_momentum", "optimizer": "sgd(momentum=0)"},
}
BUDGET = {
    "exchange": "budget(bits_per_step=512, every=100, ladder=[sign, block_scaled(4)])",
    "compressor": "sign",
    "scope": "per_leaf",
}
OTHERS: dict[str, dict[str, Any]] = {
    "budget, dense at times": {**BUDGET, "flush_every": "3 steps"},
    "budget after local steps": {**BUDGET, "mixer": "local_sgd(h=3)", "memory": "none"},
    "gossip": {
        "mixer": "choco(gamma=0.5)",
        "topology": "ring",
        "exchange": "",
        "memory": "",
        "compressor": "sign",
    },
}


def settings_of(optimizer: str) -> dict[str, Any]:
    return {"optimizer": optimizer, **OPTIMIZERS[optimizer]}


CASES = {name: settings_of(name) for name in OPTIMIZERS} | OTHERS


def test_every_optimizer_and_schedule_takes_part():
    assert set(OPTIMIZERS) == set(optimizers.REGISTRY)
    around = " ".join(x.get("memory", "error_feedback") for x in OPTIMIZERS.values())
    assert all(memory in around for memory in MEMORIES)
    assert set(SCHEDULES) == set(schedules.REGISTRY)


def test_every_exchange_with_a_clock_takes_part():
    tree = jax.tree.map(lambda x: x[0], gradients(2, seed=0))
    tried = " ".join(settings.get("exchange", "") for settings in CASES.values())
    for exchange, compressor in PAIRS:
        state = jax.eval_shape(compiled(exchange, compressor, 2).init, tree)
        assert not found(state, is_clock) or exchange.partition("(")[0] in tried


@pytest.mark.parametrize("case", CASES)
def test_every_clock_is_the_step(case):
    """The link's, which is the run's, the rate's, and a budget's; skipped or not."""
    for number, state in enumerate(states(**CASES[case])):
        clocks = [np.asarray(clock.step) for clock in found(state, is_clock)]
        assert len(clocks) >= 2 + ("budget" in case)
        assert set(np.ravel(state.step).tolist()) == {number}
        assert {int(n) for clock in clocks for n in np.ravel(clock)} == {number}


@pytest.mark.parametrize("case", [*OPTIMIZERS, "budget, dense at times"])
def test_a_bad_step_changes_nothing_but_clocks_on_any_worker(case):
    """Of one worker, before and after a step that filled residuals and momenta."""
    path = states(**CASES[case])
    for number, (before, after) in enumerate(zip(path, path[1:], strict=False)):
        if number in BAD:
            assert_same_state(after, ticked(before))
        else:
            moved = zip(
                *map(jax.tree.leaves, (before.params, after.params)), strict=True
            )
            assert any(np.any(a != b) for a, b in moved)
        floats = [x for x in jax.tree.leaves(after) if x.dtype.kind == "f"]
        assert all(np.isfinite(x).all() for x in floats)


# --- The learning rate ----------------------------------------------------------------


SCHEDULES = {
    "constant": "constant",
    "convex_decay": "convex_decay(epochs=2)",
    "cosine": "cosine(final=0.1)",
    "multistep": "multistep(epochs=[1, 2])",
    "one_cycle": "one_cycle",
    "piecewise_linear": "piecewise_linear(epochs=[0, 1, 3], values=[0.5, 1, 0])",
    "polynomial": "polynomial(final=0.1)",
}


SHARED = of_memory("shared_momentum(beta=0.9)")


def updates_of(optimizer: str, rate: optax.Schedule, state: TrainState, given: Any):
    momentum = SHARED if optimizer == "one_bit_adam" else None
    setting = OptimizerSetting(rate, DECAY, DENSE, momentum)
    spec = settings_of(optimizer)["optimizer"]
    link = optimizers.build(spec, optimizers.REGISTRY, "optimizer", setting)
    return link.update(given, state.opt_state[1], state.params)[0]


def some_update(state: TrainState) -> Any:
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(np.float32), state.params
    )


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    sorted({(o, "cosine") for o in OPTIMIZERS} | {("sgd", s) for s in SCHEDULES}),
)
def test_the_logged_rate_is_the_one_that_is_applied(optimizer, schedule):
    """The update of each state of a run, as a multiple of that at a rate of 1."""
    path = states(**settings_of(optimizer))
    rate = rate_of(SCHEDULES[schedule])
    given = some_update(path[0])

    @jax.jit
    def both(state: TrainState) -> Any:
        return [
            updates_of(optimizer, r, state, given)
            for r in (rate, optax.constant_schedule(1))
        ]

    for number, state in enumerate(path):
        scaled, whole = (
            np.concatenate([np.ravel(x) for x in jax.tree.leaves(u)])
            for u in both(state)
        )
        assert np.linalg.norm(whole) > 0
        np.testing.assert_allclose(scaled, float(rate(number)) * whole, rtol=1e-5)


# --- 1-bit Adam -----------------------------------------------------------------------


def mean_gradient(params: Any, number: int) -> dict[str, np.ndarray]:
    """Of the cross entropy of all workers' examples."""
    layer = jax.tree.map(np.asarray, params["Dense_0"])
    images, labels = IMAGES[number].reshape(-1, FEATURES), LABELS[number].ravel()
    logits = images @ layer["kernel"] + layer["bias"]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    error = (shares - np.eye(CLASSES)[labels]) / len(labels)
    return {"kernel": images.T @ error, "bias": error.sum(axis=0)}


@pytest.mark.parametrize("bad", [(), (0,), BAD], ids=str)
def test_the_variance_of_one_bit_adam_learns_from_whole_gradients_alone(bad):
    b2 = 0.999
    path = states(bad, **settings_of("one_bit_adam"))
    v: Any = {"kernel": 0.0, "bias": 0.0}
    for number, (before, after) in enumerate(zip(path, path[1:], strict=False)):
        if number < DENSE and number not in bad:
            g = mean_gradient(before.params, number)
            v = {name: b2 * v[name] + (1 - b2) * g[name] ** 2 for name in v}
        [adam] = found(after.opt_state, lambda x: isinstance(x, OneBitAdamState))
        for name, expected in v.items():
            variance = np.broadcast_to(expected, adam.variance["Dense_0"][name].shape)
            np.testing.assert_allclose(
                adam.variance["Dense_0"][name], variance, rtol=1e-3, atol=1e-9
            )

    # The zeros at the start have the share that what was applied has left them.
    m = some_update(path[-1])["Dense_0"]
    unit = optax.constant_schedule(1)
    given = {"Dense_0": m}
    update = jax.jit(functools.partial(updates_of, "one_bit_adam", unit))
    found_update = update(path[-1], given)["Dense_0"]
    arrived = STEPS - len(bad) + 1
    learnt = len(set(range(DENSE)) - set(bad))
    for name, w in path[-1].params["Dense_0"].items():
        root = np.sqrt(v[name] / (1 - b2**learnt)) + 1e-8
        expected = -(m[name] / (1 - 0.9**arrived) / root + DECAY * np.asarray(w))
        np.testing.assert_allclose(found_update[name], expected, rtol=2e-3)


def test_one_bit_adam_that_has_learnt_nothing_takes_no_step():
    """A compressed gradient is no stand-in, and a variance of 0 would be a divisor."""
    link = optimizers.one_bit_adam(OptimizerSetting(rate_of("cosine"), 0, 1, SHARED))
    params: Any = jnp.ones(3)
    state: Any = link.init(params)
    late = state[0]._replace(clock=Clock(jnp.int32(1)))
    updates: Any = link.update(params, (late, *state[1:]), params)[0]
    assert np.isnan(updates).all()


# --- Budget ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "case", "measured"),
    [
        ((), "budget, dense at times", 0),
        ((0,), "budget, dense at times", 1),
        ((), "budget after local steps", 2),
    ],
    ids=str,
)
def test_a_budget_measures_at_the_first_step_that_lets_it(bad, case, measured):
    """Every 100 steps, so that a choice that is missed would be missed for long."""
    choices = []
    for state in states(bad, **CASES[case]):
        [budget] = found(state, lambda x: isinstance(x, BudgetState))
        choices.append(np.asarray(budget.choices).tolist())
    assert choices[: measured + 1] == choices[:1] * (measured + 1)
    assert choices[measured + 1 :] == choices[-1:] * (STEPS - measured)
    assert choices[0] != choices[-1]
