"""Clipping that knows of tensors and workers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.trees import clipped, norm, norms
from jaxcomp.transforms.clipping import (
    clip_by_norm,
    clip_by_worker_norm,
    clip_values_by_worker_norm,
)


def apply(tx: Any, tree: Any) -> Any:
    """On simulated workers."""
    return jax.vmap(lambda x: tx.update(x, tx.init(x))[0], axis_name="workers")(tree)


def tree(scale: float = 1.0) -> Any:
    rng = np.random.default_rng(0)
    draw = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 6)) * 10
    return {
        k: jnp.asarray(x * scale, jnp.float32) for k, x in zip("ab", draw, strict=True)
    }


def lengths(x):
    return np.linalg.norm(np.asarray(x, np.float64).reshape(3, -1), axis=1)


def test_each_tensor_by_its_norm():
    before, after = tree(), apply(clip_by_norm(2.0), tree())
    for name in "ab":
        expected = np.minimum(lengths(before[name]), 2.0)
        np.testing.assert_allclose(lengths(after[name]), expected, rtol=1e-5)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e25, 1e-30])
def test_one_factor_for_all_workers(each, scale):
    """The root mean square of the workers' norms becomes the limit; huge ones too."""
    before = tree(scale)
    squares = {k: np.square(lengths(x)) for k, x in before.items()}
    limit = 2.0 * scale
    after = apply(clip_by_worker_norm(limit, each=each), before)
    whole = sum(squares.values())
    for name in "ab":
        rms = np.sqrt(np.mean(squares[name] if each else whole))
        factor = min(1.0, limit / rms)
        np.testing.assert_allclose(
            after[name], np.asarray(before[name]) * factor, rtol=1e-4
        )


def test_values_at_the_norm_over_workers():
    before = {"a": jnp.asarray([[100.0, 0.0], [0.0, 1.0], [0.0, 1.0]])}
    after = apply(clip_values_by_worker_norm(), before)
    limit = np.sqrt((100.0**2 + 1 + 1) / 3)
    np.testing.assert_allclose(
        after["a"], np.clip(before["a"], -limit, limit), rtol=1e-5
    )
    assert float(after["a"][0, 0]) < 100


def test_a_nan_is_not_clipped_away():
    bad = tree()
    bad["a"] = bad["a"].at[1, 2, 3].set(jnp.nan)
    for tx in (
        clip_by_norm(1.0),
        clip_by_worker_norm(1.0),
        clip_values_by_worker_norm(),
    ):
        assert np.isnan(np.asarray(apply(tx, bad)["a"])).any()


def test_zeros_stay_zeros():
    nothing = jax.tree.map(jnp.zeros_like, tree())
    assert not np.any(apply(clip_by_norm(1.0), nothing)["a"])
    assert not np.any(clipped(nothing, 1.0)["b"])


@pytest.mark.parametrize("limit", [0, -1, "1"])
def test_a_limit_is_positive(limit):
    with pytest.raises(ValueError, match="positive"):
        clip_by_norm(limit)


def test_norms_of_what_would_overflow():
    x = {"a": jnp.asarray([3e38, 3e38]) / 2, "b": jnp.asarray([1e-30])}
    np.testing.assert_allclose(norms(x)[0], 2.12132e38, rtol=1e-5)
    np.testing.assert_allclose(norms(x)[1], 1e-30, rtol=1e-5)
    np.testing.assert_allclose(norm(x), 2.12132e38, rtol=1e-5)
    assert float(norm({})) == 0
