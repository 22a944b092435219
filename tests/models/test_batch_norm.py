"""Batch normalisation against NumPy: groups of a batch, and groups of all workers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.errors import UserError
from jaxcomp.models import Statistics
from jaxcomp.models._layers import BatchNorm

WORKERS, EXAMPLES, CHANNELS = 2, 6, 3
DATA = np.random.default_rng(0).normal(size=(WORKERS, EXAMPLES, 4, 5, CHANNELS)) * 3 + 1
DATA[1] *= 1e-3  # small enough to show the 1e-5 that is added to a variance
PARAMS = {"scale": np.array([1.0, 2.0, 0.5]), "bias": np.array([0.0, 1.0, -1.0])}
START = {"mean": np.array([1.0, 0.0, 2.0]), "var": np.array([2.0, 1.0, 3.0])}


def reference(groups: list[np.ndarray]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Each group by itself, and the running averages after it.

    y = scale * (x - mean) / sqrt(var + 1e-5) + bias
    """
    axes = tuple(range(groups[0].ndim - 1))
    means, variances = ([f(x, axes) for x in groups] for f in (np.mean, np.var))
    normalised = [
        PARAMS["scale"] * (x - m) / np.sqrt(v + 1e-5) + PARAMS["bias"]
        for x, m, v in zip(groups, means, variances, strict=True)
    ]
    running = {
        "mean": 0.9 * START["mean"] + 0.1 * np.mean(means, 0),
        "var": 0.9 * START["var"] + 0.1 * np.mean(variances, 0),
    }
    return normalised, running


def ours(statistics: Statistics, data: np.ndarray = DATA) -> tuple[Any, Any]:
    """Of all workers, [workers, ...]."""
    variables: Any = jax.tree.map(jnp.float32, {"params": PARAMS, "batch_stats": START})

    def apply(x: jax.Array) -> Any:
        model = BatchNorm(statistics)
        return model.apply(variables, x, True, mutable=["batch_stats"])

    y, new = jax.jit(jax.vmap(apply, axis_name="workers"))(jnp.float32(data))
    return y, new["batch_stats"]


def check(found: tuple[Any, Any], worker: int, expected: Any, running: Any) -> None:
    y, stats = found
    np.testing.assert_allclose(y[worker], expected, rtol=1e-4, atol=1e-5)
    for name in ("mean", "var"):
        np.testing.assert_allclose(stats[name][worker], running[name], rtol=1e-5)


@pytest.mark.parametrize("group", [0, 1, 2, 3, 6])
def test_groups_of_a_worker(group):
    found = ours(Statistics(None, group))
    for worker, batch in enumerate(DATA):
        parts = np.split(batch, EXAMPLES // (group or EXAMPLES))
        expected, running = reference(parts)
        check(found, worker, np.concatenate(expected), running)


@pytest.mark.parametrize("group", [0, 2])
def test_groups_of_all_workers(group):
    """Group i of a worker is normalised together with group i of the others."""
    found = ours(Statistics("workers", group))
    size = group or EXAMPLES
    parts = [
        DATA[:, i : i + size].reshape(-1, *DATA.shape[2:])
        for i in range(0, EXAMPLES, size)
    ]
    expected, running = reference(parts)
    of_workers = [y.reshape(WORKERS, size, *DATA.shape[2:]) for y in expected]
    for worker in range(WORKERS):
        y = np.concatenate([part[worker] for part in of_workers])
        check(found, worker, y, running)


def test_evaluations_and_the_first_call_know_no_groups():
    """Five examples in groups of two, and an axis that does not exist."""
    model, x = BatchNorm(Statistics("workers", 2)), jnp.float32(DATA[0, :5])
    variables = model.init(jax.random.key(0), x, True)
    np.testing.assert_array_equal(variables["batch_stats"]["mean"], np.zeros(3))
    evaluated: Any = model.apply(variables, x, False)
    assert evaluated.shape == x.shape


@pytest.mark.parametrize(
    ("group", "valid"), [(4, "take 1, 2, 3 or 6"), (7, "do not divide the 6 examples")]
)
def test_groups_that_do_not_fit_are_told_which_do(group, valid):
    with pytest.raises(UserError, match=valid):
        ours(Statistics(None, group))


def test_half_precision_comes_back_and_statistics_stay_float32():
    x = jnp.float16(DATA[0])
    model = BatchNorm(Statistics(None, 3))
    variables = model.init(jax.random.key(0), x, True)
    y, new = model.apply(variables, x, True, mutable=["batch_stats"])
    assert y.dtype == jnp.float16
    assert {s.dtype for s in jax.tree.leaves(new)} == {jnp.dtype("float32")}
