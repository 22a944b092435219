"""EDEN against its slow version, its theory, and vectors that break Hadamard's."""

import functools
import math
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import nbits
from jaxcomp.compressors._kit.rotation import haar
from jaxcomp.compressors.eden import Rotated, lloyd_max, mean_square_error
from jaxcomp.core import prng
from jaxcomp.core.trees import spec_of
from tests import laws, references
from tests.laws import draws, heavy, make
from tests.tiers import tiers


@functools.partial(jax.jit, static_argnums=0)
def send(method: str, x: jax.Array, key: jax.Array) -> tuple[Rotated, jax.Array]:
    """The payload of x, and what it decodes to."""
    payload, _ = make(method).compress(x, (), key)
    return payload, make(method).decompress(payload, spec_of(x))


# The rotation.

rotate = jax.jit(haar, static_argnums=1)


@pytest.mark.parametrize(
    "size", tiers([1, 2, 3, 16, 64, 65, 131], (1, 3, 64).__contains__)
)
def test_a_rotation_is_a_product_of_reflections(size: int) -> None:
    seed = jnp.array([3, size], jnp.uint32)
    words = np.asarray(prng.words(seed, size * size)).reshape(size, size)
    to_normal = np.vectorize(statistics.NormalDist().inv_cdf)
    directions = to_normal(((words >> 8) + 0.5) / 2**24)
    signs = np.where(words[0] % 2 == 1, -1, 1)
    expected = references.reflections(directions, signs)
    actual = rotate(seed, size)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


# The levels.


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_are_the_means_of_their_cells(bits: int) -> None:
    """And cells end half-way between levels: no other levels have both (Max, 1960)."""
    levels = lloyd_max(bits)
    assert levels.size == 2 ** (bits - 1)
    edges = [0, *(levels[1:] + levels[:-1]) / 2, 40]
    for level, low, high in zip(levels, edges[:-1], edges[1:], strict=True):
        high = min(high, low + 8)
        width = (high - low) / 20_000
        t = low + width * (np.arange(20_000) + 0.5)
        weights = np.exp((low**2 - t**2) / 2)
        assert level == pytest.approx(np.average(t, weights=weights), rel=1e-6)


@pytest.mark.parametrize(
    ("bits", "published"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)]
)
def test_error_of_the_levels_is_the_published_one(bits: int, published: float) -> None:
    assert mean_square_error(bits, 10**6) == pytest.approx(published, rel=5e-4)


# The method.


@pytest.mark.parametrize(
    ("size", "bits", "unbiased"),
    tiers(
        [(1, 2, True), (3, 1, False), (257, 1, True), (257, 3, False), (1000, 8, True)],
        lambda case: case[0] != 3,
    ),
)
def test_eden_is_its_slow_version(size: int, bits: int, unbiased: bool) -> None:
    x = heavy(size)
    method = f"eden(bits={bits}, unbiased={unbiased})"
    payload, decoded = send(method, jnp.asarray(x), jax.random.key(1))
    number, width = references.eden_blocks(size)
    seeds = prng.words(payload.seed, 4).reshape(2, 2)
    words = np.asarray(prng.words(seeds[1], number * width))
    flips = np.where(words >> 31 == 1, -1, 1)
    rotation = np.asarray(rotate(seeds[0], width), np.float64)
    expected = references.eden(
        x.astype(np.float64), rotation, flips, lloyd_max(bits), unbiased
    )
    actual = np.asarray(decoded, np.float64)
    # Up to the scales: eight bits, up or down if the mean is kept, else to nearest.
    step = 2.0**-7 if unbiased else 2.0**-8
    for start in range(0, size, width):
        a, b = actual[start : start + width], expected[start : start + width]
        ratio = (a @ b) / (b @ b)
        assert abs(ratio - 1) <= step
        np.testing.assert_allclose(a, ratio * b, atol=1e-5 * np.abs(b).max())


SPIKES = {
    "two unequal": [1.0, 0.03],
    "two very unequal": [1.0, 1 / 64],
    "huge among small": [1000.0, *[1.0] * 63],
    "large among small": [10.0, *[-1.0] * 63],
    "constant": [0.3] * 64,
}


@pytest.fixture(params=tiers(SPIKES, {"two unequal", "constant"}.__contains__))
def spiky(request: pytest.FixtureRequest) -> np.ndarray:
    values = SPIKES[request.param]
    return np.asarray([*values, *[0.0] * (64 - len(values))], np.float32)


def test_eden_is_unbiased_where_hadamard_rotations_are_not(spiky: np.ndarray) -> None:
    """Small elements beside a huge one arrive as large as they are, on the average."""
    x = jnp.asarray(spiky)
    laws.check_unbiased(make("eden"), x, draws=4 * laws.CHUNK)
    found = draws("eden", spiky, 4 * laws.CHUNK)
    small = np.where(np.abs(spiky) < np.abs(spiky).max(), spiky, 0)
    if small.any():
        share = found @ small / (small @ small)
        allowed = 5 * share.std() / math.sqrt(len(found))
        assert abs(share.mean() - 1) < allowed


def test_the_error_does_not_depend_on_the_vector(spiky: np.ndarray) -> None:
    """E(<R x, q> / |R x| |q|)^2 = 2/pi + (1 - 2/pi)/d for one bit, exactly."""
    _, width = references.eden_blocks(64)
    expected = (1 - 2 / math.pi) * (1 - 1 / width)
    found = draws("eden(unbiased=False)", spiky, laws.CHUNK)
    errors = np.square(found - spiky).sum(axis=1) / np.square(spiky).sum()
    allowed = 5 * errors.std() / math.sqrt(len(errors)) + 2.0**-16
    assert abs(errors.mean() - expected) < allowed


def test_one_number_is_rounded_without_bias() -> None:
    """Nothing but the rounding of its scale is random."""
    x = jnp.asarray([0.3], jnp.float32)
    laws.check_unbiased(make("eden"), x)
    below, above = np.unique(draws("eden", np.asarray(x), 100))
    assert below < 0.3 < above < below * (1 + 2**-6.9)


def test_unbiased_up_to_an_eighth_of_the_largest_number() -> None:
    """Beyond, what comes out has to be clipped, and lies on one side of x."""
    largest = np.finfo(np.float32).max
    laws.check_unbiased(make("eden"), jnp.full(64, largest / 8), 4 * laws.CHUNK)
    mean = draws("eden", np.full(64, largest), laws.CHUNK).mean()
    assert mean < 0.7 * largest


def test_long_vectors_are_cut_into_parts_that_fit_together() -> None:
    """Every stretch is restored, also where the last part overlaps with another."""
    size = 2_200_001
    x = heavy(size)
    method, key = "eden(bits=6, unbiased=False)", jax.random.key(0)
    payload, decoded = send(method, jnp.asarray(x), key)
    x_hat = np.asarray(decoded)
    part_size = payload.scales.size // 3 * 192
    assert 2 * part_size < size < 3 * part_size
    for start in range(0, size, 100):
        part = x[start : start + 100]
        distance = np.square(x_hat[start : start + 100] - part).sum()
        around = x[max(0, start - 192) : start + 292]
        assert distance < 0.004 * np.square(around).sum()
    # What comes before the last part proper is none of its business.
    x[:] = 0
    x[2 * part_size - 1] = 1
    assert 0 < np.count_nonzero(send(method, jnp.asarray(x), key)[1]) <= 192


def test_a_nan_stays_in_its_block() -> None:
    number, width = references.eden_blocks(300)
    assert number > 2
    x = heavy(300)
    method, key = "eden(bits=2, unbiased=False)", jax.random.key(0)
    expected = np.array(send(method, jnp.asarray(x), key)[1])
    for value in (np.nan, np.inf):
        actual = np.asarray(send(method, jnp.asarray(x).at[width].set(value), key)[1])
        assert np.isnan(actual[width : 2 * width]).all()
        np.testing.assert_array_equal(actual[:width], expected[:width])
        np.testing.assert_array_equal(actual[2 * width :], expected[2 * width :])


def test_blocks_have_scales_of_their_own() -> None:
    number, width = references.eden_blocks(300)
    scales = np.resize(np.array([1e37, 0, 1, 1e-35], np.float32), number)
    x = heavy(300) * np.repeat(scales, width)[:300]
    _, decoded = send("eden(bits=8, unbiased=False)", x, jax.random.key(0))
    actual = np.asarray(decoded, np.float64)
    for start in range(0, 300, width):
        a, b = actual[start : start + width], x[start : start + width]
        assert np.linalg.norm(a - b) <= 0.02 * np.linalg.norm(b.astype(np.float64))


def test_who_decodes_in_the_same_program_gets_what_others_get() -> None:
    """XLA may drop a conversion to bfloat16 and back: a memory would count wrongly."""
    x = jnp.asarray(heavy(300))
    method = "eden(unbiased=False)"
    payload, here = send(method, x, jax.random.key(0))
    there = jax.jit(make(method).decompress)(payload, x)
    np.testing.assert_allclose(here, there, atol=1e-5)


def test_memory_is_a_fraction_of_the_vector() -> None:
    spec = jax.ShapeDtypeStruct((1 << 22,), jnp.float32)
    compressor = make("eden")
    key = jax.random.key(0)
    payload = jax.eval_shape(lambda x: compressor.compress(x, (), key)[0], spec)
    compress = jax.jit(lambda x, key: compressor.compress(x, (), key)[0])
    decompress = jax.jit(lambda payload: compressor.decompress(payload, spec))
    for lowered in (compress.lower(spec, key), decompress.lower(payload)):
        analysis = lowered.compile().memory_analysis()
        assert analysis is not None
        assert analysis.temp_size_in_bytes < 0.6 * nbits(spec) / 8
