"""Each method against its slow and obvious version."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import SpecError, make_compressor
from jaxcomp.base import spec_of
from jaxcomp.compressors import compose
from jaxcomp.compressors.random_k import random_subset
from jaxcomp.payloads import Quantized, Sparse
from tests import laws, references

SIZE = 257


def heavy(seed: int = 0, size: int = SIZE) -> np.ndarray:
    values = np.random.default_rng(seed).standard_t(3, size=size)
    return values.astype(np.float32)


def through(method: str, x: np.ndarray) -> np.ndarray:
    """C(x) of a method that draws nothing."""
    return np.asarray(laws.outputs(make_compressor(method), x, no_keys()))[0]


def no_keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), 1)


@pytest.mark.parametrize("keep", [0.001, 0.1, 1.0])
def test_top_k_is_a_sort(keep: float) -> None:
    x = heavy()
    k = max(1, round(keep * SIZE))
    actual = through(f"top_k(keep={keep})", x)
    np.testing.assert_array_equal(actual, references.top_k(x, k))


def test_top_k_of_equal_magnitudes_keeps_k_of_them() -> None:
    x = np.where(heavy() < 0, -1, 1).astype(np.float32)
    y = through("top_k(keep=0.1)", x)
    assert np.count_nonzero(y) == 26
    np.testing.assert_array_equal(y[y != 0], x[y != 0])


@pytest.mark.parametrize("size", [65_536, 65_537])
def test_top_k_finds_the_last_of_many_places(size: int) -> None:
    """The width of an index changes between these sizes."""
    x = np.arange(1, size + 1, dtype=np.float32)
    compressor = make_compressor(f"top_k(keep={2 / size})")
    payload, _ = compressor.compress(jnp.asarray(x), (), jax.random.key(0))
    y = compressor.decompress(payload, spec_of(x))
    np.testing.assert_array_equal(y, references.top_k(x, 2))
    assert payload.indices.dtype == (jnp.uint16 if size == 65_536 else jnp.uint32)


def test_sign_is_the_mean_magnitude_with_signs() -> None:
    x = heavy()
    x[3] = 0
    np.testing.assert_allclose(through("sign", x), references.sign(x), rtol=1e-6)


@pytest.mark.parametrize("x", [0.0, -2.5, 3e38])
def test_sign_of_one_number_is_the_number(x: float) -> None:
    y = through("sign", np.asarray([x], np.float32))
    np.testing.assert_array_equal(y, np.asarray([x], np.float32))


@pytest.mark.parametrize(
    ("levels", "bucket"), [(1, None), (7, 100), (127, 512)], ids=str
)
def test_qsgd_takes_a_neighbour_with_its_chance(
    levels: int, bucket: int | None
) -> None:
    x, draws = heavy(), laws.CHUNK
    expected = references.qsgd(x, levels, bucket)
    keys = jax.random.split(jax.random.key(1), draws)
    compressor = make_compressor(f"qsgd(levels={levels}, bucket={bucket})")
    rows = np.asarray(laws.outputs(compressor, x, keys), np.float64)
    gap = np.abs(expected.upper - expected.lower)
    is_upper = np.abs(rows - expected.upper) < 1e-3 * gap
    is_lower = np.abs(rows - expected.lower) < 1e-3 * gap
    assert (is_upper ^ is_lower).all()
    # The mean chance is added for elements whose own chance is too small to be seen.
    p = expected.chance
    allowed = 6 * np.sqrt((p * (1 - p) + (p * (1 - p)).mean()) / draws)
    assert (np.abs(is_upper.mean(axis=0) - p) <= allowed).all()


def test_qsgd_needs_no_level_beyond_the_largest() -> None:
    """One element alone is the norm itself, whatever the noise."""
    x = np.asarray([0, -0.7, 0], np.float32)
    keys = jax.random.split(jax.random.key(2), laws.CHUNK)
    rows = laws.outputs(make_compressor("qsgd(levels=7)"), x, keys)
    np.testing.assert_allclose(rows, np.broadcast_to(x, rows.shape), rtol=1e-6)


def test_qsgd_keeps_a_nan_in_its_bucket(key: jax.Array) -> None:
    x = jnp.asarray(heavy()).at[50].set(jnp.nan)
    compressor = make_compressor("qsgd(levels=7, bucket=100)")
    payload, _ = compressor.compress(x, (), key)
    y = np.asarray(compressor.decompress(payload, spec_of(x)))
    assert np.isnan(y[:100]).all()
    clean, _ = compressor.compress(x.at[50].set(0.0), (), key)
    expected = compressor.decompress(clean, spec_of(x))
    np.testing.assert_array_equal(y[100:], expected[100:])


@functools.partial(jax.jit, static_argnums=(1, 2))
def subsets(seeds: jax.Array, size: int, count: int) -> jax.Array:
    return jax.vmap(lambda seed: random_subset(seed, size, count))(seeds)


@pytest.mark.parametrize(("size", "count"), [(7, 3), (100, 33), (257, 2), (64, 64)])
def test_random_places_are_distinct_and_equally_likely(size: int, count: int) -> None:
    draws = 20_000
    seeds = jax.random.bits(jax.random.key(3), (draws, 2), jnp.uint32)
    places = np.sort(np.asarray(subsets(seeds, size, count), np.int64), axis=1)
    assert places.min() >= 0
    assert places.max() < size
    assert (np.diff(places, axis=1) > 0).all()
    p = count / size
    counts = np.bincount(places.reshape(-1), minlength=size)
    excess = np.square(counts - draws * p)
    # Mean of a chi-square is its degrees of freedom; the rest bounds its tail.
    tail = 2 * math.sqrt(size * 12) + 2 * 12
    assert excess.sum() <= draws * p * (1 - p) * (size + tail)


def test_random_k_sends_elements_of_x(key: jax.Array) -> None:
    x = jnp.asarray(heavy())
    compressor = make_compressor("random_k(keep=0.1)")
    payload, _ = compressor.compress(x, (), key)
    y = compressor.decompress(payload, spec_of(x))
    assert np.count_nonzero(y) == payload.values.size == 26
    np.testing.assert_array_equal(y, jnp.where(y != 0, x, 0.0))


def test_random_k_in_bfloat16_is_scaled_without_a_systematic_error() -> None:
    """n/k = 9.885 itself is not a bfloat16; a rounded factor is a bias of all."""
    x = jnp.full(SIZE, 1.0, jnp.bfloat16)
    compressor = make_compressor("random_k(keep=0.1, unbiased=True)")
    payload, _ = compressor.compress(
        jnp.full(SIZE, 3.0, jnp.bfloat16), (), no_keys()[0]
    )
    expected = jnp.asarray(3 * SIZE / 26, x.dtype)
    np.testing.assert_array_equal(payload.values, jnp.full(26, expected))


def test_composition_compresses_the_values_alone(key: jax.Array) -> None:
    x = jnp.asarray(heavy())
    compressor = make_compressor("top_k(keep=0.1) | qsgd(levels=127)")
    payload, _ = compressor.compress(x, compressor.init(spec_of(x)), key)
    assert isinstance(payload, Sparse)
    assert isinstance(payload.values, Quantized)
    y = np.asarray(compressor.decompress(payload, spec_of(x)))
    expected = references.top_k(np.asarray(x), 26)
    unit = float(np.linalg.norm(expected)) / 127
    np.testing.assert_allclose(y, expected, rtol=0, atol=1.001 * unit)
    assert not y[expected == 0].any()


def test_a_composition_of_aligned_methods_is_aligned(key: jax.Array) -> None:
    compressor = make_compressor("random_k(keep=0.5) | random_k(keep=0.5)")
    laws.check_aligned(compressor, jnp.asarray(heavy(1)), jnp.asarray(heavy(2)), key)


def test_three_stages_compose() -> None:
    x = heavy()
    y = through("top_k(keep=0.5) | top_k(keep=0.2) | sign", x)
    largest = references.top_k(x, round(0.2 * round(0.5 * SIZE)))
    chosen = largest != 0
    np.testing.assert_allclose(y[chosen], references.sign(largest[chosen]), rtol=1e-6)
    assert not y[~chosen].any()


def test_a_quantiser_cannot_be_on_the_left() -> None:
    with pytest.raises(ValueError, match="put a sparsifier such as top_k on the left"):
        compose(make_compressor("sign"), make_compressor("top_k"))


BAD_ARGUMENTS = [
    ("top_k(keep=0)", "in (0, 1], not 0"),
    ("top_k(keep=1.5)", "in (0, 1], not 1.5"),
    ("top_k(keep='much')", "in (0, 1], not much"),
    ("top_k(keep=nan)", "in (0, 1], not nan"),
    ("random_k(keep=-0.1)", "in (0, 1], not -0.1"),
    ("random_k(unbiased='no')", "unbiased is True or False, not 'no'"),
    ("qsgd(levels=0)", "levels is a whole number from 1 to"),
    ("qsgd(levels=7.0)", "levels is a whole number from 1 to"),
    ("qsgd(levels=True)", "levels is a whole number from 1 to"),
    ("qsgd(levels=10**9)", "expected a name"),
    ("qsgd(levels=1000000000)", "levels is a whole number from 1 to"),
    ("qsgd(bucket=0)", "bucket is a whole number of at least 1 or None"),
]


@pytest.mark.parametrize(("method", "message"), BAD_ARGUMENTS)
def test_arguments_out_of_range_are_refused(method: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        make_compressor(method)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("top_k", "top_k(keep=0.01)"),
        ("top_k(keep=1)", "top_k(keep=1)"),
        ("top_k(keep=0.333333333)", "top_k(keep=0.333333333)"),
        ("random_k(0.5, True)", "random_k(keep=0.5, unbiased=True)"),
        ("qsgd(levels=7)|none", None),
        ("top_k|sign()", "top_k(keep=0.01) | sign"),
    ],
)
def test_names_are_canonical_and_exact(method: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(SpecError, match="sends no plain values"):
            make_compressor(method)
    else:
        assert make_compressor(method).name == name
