"""Sparsifiers against their slow and obvious versions."""

import functools
import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomp import make_compressor
from jaxcomp.compressors import compose
from jaxcomp.compressors._kit.selection import magnitude_bits
from jaxcomp.compressors.adaptive_threshold import half
from jaxcomp.compressors.dgc_top_k import sampling_of
from jaxcomp.compressors.qsgd_sparse import fine_uniform, most_chosen
from jaxcomp.compressors.random_k import random_subset
from jaxcomp.core import prng
from jaxcomp.core.coding.indices import CODES
from jaxcomp.core.coding.payloads import Quantized, Sparse
from jaxcomp.core.trees import spec_of
from tests import laws, references
from tests.laws import heavy, make, through
from tests.tiers import tiers

SIZE = 257
LONG = 70_001  # beyond what is sorted
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def send(method: str, x: Any, key: Any = None) -> tuple[Any, np.ndarray]:
    """The payload of x, and what it decodes to."""
    return _send(method, jnp.asarray(x), jax.random.key(0) if key is None else key)


@functools.partial(jax.jit, static_argnums=0)
def _send(method: str, x: jax.Array, key: jax.Array) -> Any:
    compressor = make_compressor(method)
    payload, _ = compressor.compress(x, compressor.init(spec_of(x)), key)
    return payload, compressor.decompress(payload, spec_of(x))


def overflow(method: str, payload: Any, size: int) -> float:
    """The figure of that name."""
    (figure,) = make_compressor(method).figures
    assert figure.name == "overflow"
    return float(figure.of(payload, jax.ShapeDtypeStruct((size,), jnp.float32)))


# top_k


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


@pytest.mark.parametrize("index", CODES)
@pytest.mark.parametrize("size", [65_535, 65_536])
def test_top_k_finds_the_last_of_many_places(size: int, index: str) -> None:
    """The width of a plain index changes between these sizes."""
    x = np.arange(1, size + 1, dtype=np.float32)
    payload, y = send(f"top_k(keep={2 / size}, index={index!r})", x)
    np.testing.assert_array_equal(y, references.top_k(x, 2))
    if index == "plain":
        width = jnp.uint16 if size == 65_535 else jnp.uint32
        assert payload.indices.dtype == width


# random_k


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


@pytest.mark.parametrize("size", [5, 1000, 25_000_000, 4_294_967_291])
def test_random_places_are_those_of_exact_arithmetic(size: int) -> None:
    """Neither the rotation nor the wrap leaves 32 bits."""
    seeds = jax.random.bits(jax.random.key(4), (50, 2), jnp.uint32)
    seeds = seeds.at[0].set(0xFFFFFFFF).at[1].set(0)
    actual = np.asarray(subsets(seeds, size, 3))
    for seed, places in zip(seeds, actual, strict=True):
        words = np.asarray(prng.words(seed, 3)).tolist()
        a, b = seed.tolist()
        assert places.tolist() == references.random_subset((a, b), words, size)


def test_random_k_in_bfloat16_is_scaled_without_a_systematic_error() -> None:
    """n/k = 9.885 itself is not a bfloat16; a rounded factor is a bias of all."""
    x = jnp.full(SIZE, 3.0, jnp.bfloat16)
    payload, _ = send("random_k(keep=0.1, unbiased=True)", x)
    expected = jnp.asarray(3 * SIZE / 26, x.dtype)
    np.testing.assert_array_equal(payload.values, jnp.full(26, expected))


# block_top_k


@given(
    size=st.integers(1, 3000),
    block=st.integers(1, 200),
    per_block=st.integers(1, 4),
    ties=st.booleans(),
)
@settings(max_examples=6, deadline=None, derandomize=True)
def test_block_top_k_is_a_sort_of_each_block(
    size: int, block: int, per_block: int, ties: bool
) -> None:
    x = heavy(size, size)
    x = np.round(x) if ties else x
    block = max(block, per_block)
    y = through(f"block_top_k(keep={per_block / block}, per_block={per_block})", x)
    np.testing.assert_array_equal(y, references.block_top_k(x, block, per_block))


@pytest.mark.parametrize("dtype", tiers(DTYPES, lambda d: d != jnp.float16))
@pytest.mark.parametrize(("block", "per_block"), [(2, 1), (100, 1), (7000, 3)])
def test_block_top_k_of_more_than_fits_a_pass(
    block: int, per_block: int, dtype: Any
) -> None:
    """Whole rows of lanes, and a last one that is not full."""
    x = np.asarray(jnp.asarray(np.round(heavy(LONG, 1), 1)).astype(dtype))
    _, y = send(f"block_top_k(keep={per_block / block}, per_block={per_block})", x)
    np.testing.assert_array_equal(y, references.block_top_k(x, block, per_block))


# threshold and adaptive_threshold


@pytest.mark.parametrize("size", [1, SIZE, LONG])
def test_threshold_keeps_what_reaches_it(size: int) -> None:
    x = heavy(size, 2)
    x[0] = -1.0
    method = "threshold(v=1.0, cap=0.05)"
    most = max(1, round(0.05 * size))
    for scaled in (x, x / 4, x / 100):  # too many, enough room, hardly any
        payload, y = send(method, scaled)
        expected, passed = references.threshold(scaled, 1.0, most)
        np.testing.assert_array_equal(y, expected)
        assert payload.passed == passed
        assert payload.values.size == most
        assert overflow(method, payload, size) == max(0, passed - most)


@pytest.mark.parametrize("size", [SIZE, LONG])
def test_adaptive_threshold_keeps_what_reaches_half_the_peak(size: int) -> None:
    x = np.random.default_rng(3).normal(size=size).astype(np.float32)
    x[[5, 6]] = np.abs(x).max() / 2, -np.nextafter(np.abs(x).max() / 2, np.float32(0))
    most = round(0.1 * size)
    for vector in (x, np.clip(x, -1, 1)):  # enough room, too many
        payload, y = send("adaptive_threshold(cap=0.1)", vector)
        expected, passed = references.adaptive_threshold(vector, most)
        np.testing.assert_array_equal(y, expected)
        assert payload.passed == passed


@pytest.mark.parametrize("method", ["threshold(v=1.0, ", "adaptive_threshold("])
def test_too_many_are_nan_if_so_wished(method: str) -> None:
    x = np.zeros(SIZE, np.float32)
    method += "cap=0.01, overflow='nan')"
    for count in (0, 3, 4, SIZE):
        x[:count] = 2
        _, y = send(method, x)
        assert np.isnan(y).any() == (count > 3)
        if count <= 3:
            np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threshold_is_exact_in_narrow_numbers(dtype: Any) -> None:
    """Not rounded down to a number that does not reach it."""
    x = jnp.asarray([0.0009995, 0.001, 0.00101, -0.00101]).astype(dtype)
    expected, _ = references.threshold(np.asarray(x), 0.001, 4)
    _, y = send("threshold(v=0.001, cap=1.0)", x)
    np.testing.assert_array_equal(y, expected)


def test_a_threshold_beyond_all_numbers_is_passed_by_infinity_alone() -> None:
    x = jnp.asarray([65504, -jnp.inf, 1, jnp.nan], jnp.float16)
    payload, _ = send("threshold(v=1e9, cap=1.0)", x)
    assert payload.passed == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_is_what_twice_a_number_has_to_reach(dtype: Any) -> None:
    limits = jnp.finfo(dtype)
    rng = np.random.default_rng(4)
    exponents = rng.uniform(limits.minexp - limits.nmant, limits.maxexp, 2000)
    tiny = np.arange(1, 200) * float(limits.smallest_subnormal)
    peaks = jnp.asarray(np.concatenate([2.0**exponents, tiny])).astype(dtype)
    peaks = peaks[jnp.isfinite(peaks) & (magnitude_bits(peaks) > 0)]
    bits = half(peaks)
    below = bits - np.array(1, bits.dtype)
    for is_reached, number in ((True, bits), (False, below)):
        value = np.asarray(jax.lax.bitcast_convert_type(number, dtype), np.float64)
        twice = 2 * value >= np.asarray(peaks, np.float64)
        assert (twice == is_reached).all()


# dgc_top_k


def misleading(size: int, room: int, stride: int, start: int) -> dict[str, np.ndarray]:
    """Vectors whose sample says too much, too little, and nothing."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=size)
    seen = np.arange(size) % stride == start
    last = np.flatnonzero(seen)[-1]
    # Groups of 16; one less than are wanted have all the large ones.
    groups, top = -(-seen.sum() // 16), math.ceil(size // stride * 0.01)
    few = seen & (np.arange(size) // stride % groups >= groups - top + 1)
    one = np.zeros(size)
    one[size // 2] = -1.0
    values = {
        "normal": x,
        "heavy": rng.standard_t(1.5, size=size),
        "sample too large": np.where(seen, 30 * x, x),
        "sample far too large": np.where(seen, 1e6 * x, x),
        "sample too small": np.where(seen, x / 2, x),
        "sample far too small": np.where(seen, x / 1e6, x),
        "sample ends large": np.where(np.arange(size) == last, 50, x),
        "just enough room": rng.permutation(np.arange(size) < room),
        "ties": np.round(x),
        "few groups large": np.where(few, 2, 1),
        "constant": np.ones(size),
        "one": one,
        "zero": np.zeros(size),
        "largest": np.full(size, float(np.finfo(np.float32).max)),
        "ramp": np.linspace(-1, 1, size),
    }
    return {name: v.astype(np.float32) for name, v in values.items()}


@pytest.mark.parametrize(
    "options",
    [{}, {"resample": False}, {"upper": 1.0, "lower": 1.0, "rounds": 3}],
    ids=str,
)
def test_dgc_top_k_takes_the_published_steps(options: dict[str, Any]) -> None:
    size, keep, sample = 20_023, 0.01, 0.05
    stride = sampling_of(size, keep, sample).stride
    assert stride == 17
    assert size % stride == 14
    key = jax.random.key(6)
    # The start is the seed's first word as a fraction of the stride.
    start = int(prng.seed_of(key)[0]) * stride >> 32
    assert start < 14  # so there is one sample more than planned
    room = math.floor(options.get("upper", 1.3) * 201)
    shown = "".join(f", {name}={value}" for name, value in options.items())
    method = f"dgc_top_k(keep={keep}, sample={sample}{shown})"
    for name, x in misleading(size, room, stride, start).items():
        payload, y = send(method, x, key)
        expected, passed = references.dgc_top_k(x, keep, sample, start, **options)
        assert int(payload.passed) == passed, name
        np.testing.assert_array_equal(y, expected, name)
        sent = int(np.count_nonzero(y)) if name not in ("one", "zero") else 0
        assert sent <= 1.3 * 201


def test_dgc_top_k_of_a_long_vector() -> None:
    """Where neither the samples nor the elements are sorted."""
    key, keep, sample = jax.random.key(7), 0.01, 0.1
    stride = sampling_of(LONG, keep, sample).stride
    start = int(prng.seed_of(key)[0]) * stride >> 32
    for name, x in misleading(LONG, 911, stride, start).items():
        payload, y = send(f"dgc_top_k(keep={keep}, sample={sample})", x, key)
        expected, passed = references.dgc_top_k(x, keep, sample, start)
        assert int(payload.passed) == passed, name
        np.testing.assert_array_equal(y, expected, name)


def test_dgc_top_k_by_random_samples_takes_the_largest() -> None:
    x = heavy(20_011, 8)
    for seed in range(20):
        key = jax.random.key(seed)
        payload, y = send("dgc_top_k(keep=0.01, sample=0.05, strided=False)", x, key)
        count = int(payload.passed)
        count = 201 if count > 261 else count
        assert count >= 0.8 * 201
        np.testing.assert_array_equal(y, references.top_k(x, count))


@pytest.mark.parametrize("size", [1, 99, 1500])
def test_dgc_top_k_of_a_short_vector_is_exact(size: int) -> None:
    x = np.round(heavy(size, 9), 1)
    payload, y = send("dgc_top_k(keep=0.01)", x)
    k = math.ceil(0.01 * size)
    np.testing.assert_array_equal(y, references.top_k(x, k))
    assert payload.passed == k


@given(
    size=st.integers(1, 10**9),
    keep=st.floats(1e-4, 1),
    sample=st.floats(1e-3, 1),
)
@settings(deadline=None)
def test_a_sample_is_as_large_as_it_has_to_be(
    size: int, keep: float, sample: float
) -> None:
    sampling = sampling_of(size, keep, sample)
    assert sampling.stride % 2 == 1
    assert sampling.samples == size // sampling.stride
    assert 1 <= sampling.top <= sampling.wanted <= size
    assert sampling.samples >= min(size, max(size * sample, 2 / keep))


# rotating_slice


@pytest.mark.parametrize(("size", "keep"), [(10, 0.3), (257, 0.1), (7, 1.0), (5, 0.01)])
def test_a_rotating_slice_comes_to_every_element_in_turn(
    size: int, keep: float
) -> None:
    compressor = make_compressor(f"rotating_slice(keep={keep})")
    x = jnp.arange(1.0, size + 1)
    key = jax.random.key(0)
    compress = jax.jit(lambda state: compressor.compress(x, state, key))
    state, sent = compressor.init(x), []
    for _ in range(size):
        payload, state = compress(state)
        sent.extend(np.asarray(payload.values).astype(int))
    assert sent == [*range(1, size + 1)] * (len(sent) // size)


# qsgd_sparse


def test_qsgd_sparse_chooses_with_its_chance() -> None:
    x, draws = heavy(), 5 * laws.CHUNK
    norm = np.linalg.norm(x.astype(np.float64))
    keys = jax.random.split(jax.random.key(11), draws)
    rows = np.asarray(laws.outputs(make("qsgd_sparse"), x, keys))
    chosen = rows != 0
    values = np.broadcast_to(np.sign(x) * norm, rows.shape)
    np.testing.assert_allclose(rows[chosen], values[chosen], rtol=1e-6)
    p = np.abs(x) / norm
    allowed = 6 * np.sqrt((p * (1 - p) + (p * (1 - p)).mean()) / draws)
    assert (np.abs(chosen.mean(axis=0) - p) <= allowed).all()


@pytest.mark.parametrize("scale", [1e-37, 1e37])
def test_qsgd_sparse_is_unbiased_at_every_scale(scale: float) -> None:
    x = jnp.asarray(heavy(seed=12))
    laws.check_unbiased(make_compressor("qsgd_sparse"), x / jnp.max(x) * scale)


def test_qsgd_sparse_draws_with_the_norm_that_is_sent() -> None:
    """1.002 is no bfloat16. What is sent is 1, so an element of 1 is always chosen."""
    x = jnp.asarray([1, 0.0625], jnp.bfloat16)
    keys = jax.random.split(jax.random.key(13), 10 * laws.CHUNK)
    rows = np.asarray(laws.outputs(make("qsgd_sparse"), x, keys))
    assert (rows[:, 0] == 1).all()
    assert abs(rows[:, 1].mean() - 1 / 16) <= 6 * math.sqrt(15 / 256 / len(rows))


def test_uniform_numbers_are_fine_near_zero_and_below_one() -> None:
    high = jnp.asarray([0, 0, 1, 0xFFFFFFFF], jnp.uint32)
    low = jnp.asarray([0, 3, 1 << 31, 0xFFFFFFFF], jnp.uint32)
    u = np.asarray(fine_uniform(high, low), np.float64)
    expected = [0, 3 * 2.0**-64, 1.5 * 2.0**-32, 1 - 2.0**-24]
    np.testing.assert_allclose(u, expected, rtol=2.0**-23)
    assert u.max() < 1


def test_the_room_for_chosen_elements_is_a_chernoff_bound() -> None:
    for size in sorted({round(1.07**i) for i in range(310)}):
        most = most_chosen(size)
        mean = math.sqrt(size)
        excess = (most + 1 - mean) / mean
        exponent = mean * ((1 + excess) * math.log1p(excess) - excess)
        assert most == size or math.exp(-exponent) < 1e-13, size


def test_qsgd_sparse_without_room_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package's attribute of that name is the method.
    module = importlib.import_module("jaxcomp.compressors.qsgd_sparse")
    monkeypatch.setattr(module, "most_chosen", lambda size: 3)
    x = jnp.ones(400)
    compressor = make_compressor("qsgd_sparse")
    payload, _ = compressor.compress(x, (), jax.random.key(15))
    assert np.isnan(compressor.decompress(payload, x)).any()
    assert payload.passed > 3


def test_qsgd_sparse_beyond_the_range_is_not_finite() -> None:
    for x in (jnp.full(400, 3e38), jnp.full(400, 60000, jnp.float16)):
        _, y = send("qsgd_sparse", x)
        assert not np.isfinite(y).all()


# all


@pytest.mark.parametrize(
    "method",
    tiers(
        [
            "adaptive_threshold(cap=0.01)",
            "block_top_k",
            "dgc_top_k",
            "qsgd_sparse",
            "random_k",
            "rotating_slice",
            "threshold(cap=0.01)",
            "top_k",
        ],
        {"top_k", "random_k", "threshold(cap=0.01)"}.__contains__,
    ),
)
def test_nothing_of_the_size_of_the_vector_is_stored(method: str) -> None:
    compressor = make_compressor(method)
    x = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    compress = jax.jit(lambda x, key: compressor.compress(x, compressor.init(x), key))
    memory = compress.lower(x, jax.random.key(0)).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < 4 * x.size / 2


# compositions


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
    laws.check_aligned(
        compressor, jnp.asarray(heavy(seed=1)), jnp.asarray(heavy(seed=2)), key
    )


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
