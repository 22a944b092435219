"""Bitmaps against sets of Python integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.coding import indices

# Both sides of a word and of a row of words that are summed together.
SIZES = [1, 31, 32, 33, 1000, 32 * 1024, 32 * 1024 + 1]
MASKS = {
    "none": lambda n: np.zeros(n, bool),
    "all": lambda n: np.ones(n, bool),
    "last": lambda n: np.arange(n) == n - 1,
    "random": lambda n: np.random.default_rng(n).random(n) < 0.3,
}


# One program for each size instead of one for every operation inside.
to_words = jax.jit(indices.to_words)
to_bits = jax.jit(indices.to_bits, static_argnums=1)
first = jax.jit(indices.first)
places = jax.jit(indices.places, static_argnums=(1, 2))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", SIZES)
def test_places_of_a_mask(name: str, size: int) -> None:
    mask = MASKS[name](size)
    expected = np.flatnonzero(mask)
    words = to_words(jnp.asarray(mask))
    assert words.shape == (-(-size // 32),)
    np.testing.assert_array_equal(to_bits(words, size), mask)
    assert indices.count(words) == expected.size
    for most in (size + 3, size // 5 + 1):  # of all, and of the first ones
        padded = np.full(most, size)
        padded[: expected.size] = expected[:most]
        np.testing.assert_array_equal(places(words, most, size), padded)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", SIZES)
def test_the_first_bits_alone(name: str, size: int) -> None:
    mask = MASKS[name](size)
    words = to_words(jnp.asarray(mask))
    total = int(mask.sum())
    for most in {0, 1, total // 2, max(total - 1, 0), total, total + 5}:
        kept = to_bits(first(words, jnp.uint32(most)), size)
        expected = mask & (np.cumsum(mask) <= most)
        np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize("at_once", [1, None])  # as on CPUs, and as on GPUs
def test_not_above_counts_like_numpy(at_once: int | None) -> None:
    rng = np.random.default_rng(0)
    ascending = np.sort(rng.integers(0, 50, 1000)).astype(np.uint32)
    limits = np.arange(49, dtype=np.uint32)
    found = indices.not_above(jnp.asarray(ascending), jnp.asarray(limits), at_once)
    expected = np.searchsorted(ascending, limits, side="right")
    np.testing.assert_array_equal(found, expected)
