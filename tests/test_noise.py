"""What compressors rely on: even bits, no pattern along a vector or between seeds.

Limits are 6 standard errors, and every draw here is fixed, so that chance fails none.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core import prng

SIZE = 1 << 22
SEEDS = [(0, 0), (1, 0), (0, 1), (0xFFFFFFFF, 0xFFFFFFFF), (0xDEADBEEF, 0x12345678)]


@functools.cache
def draw(seed: tuple[int, int], size: int = SIZE) -> np.ndarray:
    return np.asarray(prng.words(jnp.asarray(seed, jnp.uint32), size))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """In standard errors of two independent streams of fair bits."""
    return float((np.mean(a == b) - 0.5) * 2 * np.sqrt(a.size))


def chi_square(counts: np.ndarray) -> float:
    """In standard deviations of the even distribution."""
    mean = counts.sum() / counts.size
    degrees = counts.size - 1
    return float(
        (np.square(counts - mean).sum() / mean - degrees) / np.sqrt(2 * degrees)
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shift", [0, 8, 16])
def test_every_halfword_is_even(seed: tuple[int, int], shift: int) -> None:
    values = (draw(seed) >> np.uint32(shift)) & 0xFFFF
    counts = np.bincount(values, minlength=1 << 16)
    assert abs(chi_square(counts)) < 6


@pytest.mark.parametrize("seed", SEEDS)
def test_small_numbers_are_as_rare_as_they_should_be(seed: tuple[int, int]) -> None:
    """Bernoulli draws with small chances: TernGrad and QSGD live on these."""
    u = np.asarray(prng.uniform(jnp.asarray(seed, jnp.uint32), (SIZE,)))
    for p in (0.5, 0.1, 1e-2, 1e-3, 1e-4):
        assert abs((u < p).mean() - p) < 6 * np.sqrt(p * (1 - p) / SIZE)
    assert abs(u.mean() - 0.5) < 6 / np.sqrt(12 * SIZE)
    assert abs(np.square(u).mean() - 1 / 3) < 6 * np.sqrt(4 / 45 / SIZE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lag", [1, 2, 3, 32, 64, 512, 4096, 65_536])
def test_no_pattern_along_the_vector(seed: tuple[int, int], lag: int) -> None:
    values = draw(seed)
    for bit in (0, 7, 15, 31):
        bits = (values >> np.uint32(bit)) & 1
        assert abs(correlation(bits[lag:], bits[:-lag])) < 6
    u = values / 2.0**32 - 0.5
    product = (u[lag:] * u[:-lag]).mean() * 12 * np.sqrt(SIZE - lag)
    assert abs(product) < 6


@pytest.mark.parametrize(
    "other",
    [(1, 0), (0, 1), (0, 1 << 31), (0xFFFFFFFF, 0)],
)
def test_neighbouring_seeds_share_nothing(other: tuple[int, int]) -> None:
    a, b = draw((0, 0)), draw(other)
    for bit in (0, 7, 15, 31):
        x, y = (a >> np.uint32(bit)) & 1, (b >> np.uint32(bit)) & 1
        assert abs(correlation(x, y)) < 6
    # Nor is one the other in another order. By chance 2^18 of 2^32 words meet 2^18
    # others 16 times; the same words would meet always.
    few = 1 << 18
    assert np.intersect1d(a[:few], b[:few]).size < 16 + 6 * 4


def test_words_of_one_place_are_even_over_seeds() -> None:
    """Over many keys each element must see even noise: the mean over steps counts."""
    keys = jax.random.split(jax.random.key(0), 40_000)
    rows = np.asarray(jax.vmap(lambda key: prng.uniform(prng.seed_of(key), (5,)))(keys))
    assert np.abs(rows.mean(axis=0) - 0.5).max() < 6 / np.sqrt(12 * len(keys))
    for column in rows.T:
        assert abs(chi_square(np.histogram(column, 256, (0, 1))[0])) < 6
    assert np.abs(np.corrcoef(rows.T) - np.eye(5)).max() < 6 / np.sqrt(len(keys))


def test_the_first_words_do_not_depend_on_the_size() -> None:
    np.testing.assert_array_equal(draw((5, 6), 100), draw((5, 6), 1000)[:100])


def test_high_product_is_that_of_integers() -> None:
    edges = [0, 1, 2, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    words = np.asarray([*edges, *draw((7, 8), 1000).tolist()], np.uint32)
    for b in [*edges, 25_000_000, 3_000_000_019]:
        limits = np.full_like(words, b)
        found = prng.high_product(jnp.asarray(words), jnp.asarray(limits))
        wanted = (words.astype(object) * b) >> 32
        np.testing.assert_array_equal(found, wanted.astype(np.uint32))
