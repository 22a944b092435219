"""Selection against a sort, on both ways it takes and on vectors made to mislead it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomp.compressors._kit import selection
from jaxcomp.compressors._kit.selection import magnitude_bits_of

SHORT, LONG = 1000, 200_001  # sorted; narrowed, from a sample of every third


@functools.partial(jax.jit, static_argnums=1)
def largest(x: jax.Array, most: int, floor: jax.Array) -> selection.Selected:
    return selection.largest(x, most, floor)


def expected(x: np.ndarray, most: int, floor: float) -> np.ndarray:
    """Places, ascending, by a stable sort; NaN is the largest magnitude."""
    magnitude = np.where(np.isnan(x), np.inf, np.abs(x.astype(np.float64)))
    order = np.lexsort((np.arange(x.size), -magnitude, ~np.isnan(x)))
    passing = order[magnitude[order] >= floor]
    return np.sort(passing[:most])


def check(x: np.ndarray, most: int, floor: float = 0.0) -> None:
    bits = jnp.uint32(magnitude_bits_of(floor, np.float32))
    found = largest(jnp.asarray(x), most, bits)
    places = expected(x, most, floor)
    assert int(found.taken) == places.size
    assert int(found.passed) == (~(np.abs(x) < floor)).sum()
    np.testing.assert_array_equal(found.places[: places.size], places)
    np.testing.assert_array_equal(found.places[places.size :], x.size)


@functools.cache
def vectors(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    sampled = np.arange(size) % 3 == 0
    values = {
        "normal": rng.normal(size=size),
        "heavy": rng.standard_t(0.7, size=size),
        "constant": np.full(size, -0.3),
        "zero": np.zeros(size),
        "mostly zero": np.where(rng.random(size) < 0.001, rng.normal(size=size), 0),
        "few values": rng.integers(-2, 3, size),
        "ascending": np.arange(size),
        "descending": -np.arange(size)[::-1],
        "sample too large": np.where(sampled, 1e6, rng.normal(size=size)),
        "sample too small": np.where(sampled, 1e-6, rng.normal(size=size)),
        "all of one magnitude but one": np.where(np.arange(size) == size - 1, 2, 1),
        "huge and infinite": np.where(np.arange(size) % 1000 == 7, np.inf, 3e38),
        "nan": np.where(np.arange(size) % 777 == 5, np.nan, rng.normal(size=size)),
    }
    return {name: v.astype(np.float32) for name, v in values.items()}


@pytest.mark.parametrize("name", vectors(2))
@pytest.mark.parametrize("most", [1, 200, 20_000])
def test_long_vectors(name: str, most: int) -> None:
    check(vectors(LONG)[name], most)


@pytest.mark.parametrize("name", vectors(2))
@pytest.mark.parametrize("most", [1, 37, SHORT])
def test_short_vectors(name: str, most: int) -> None:
    check(vectors(SHORT)[name], most)


@pytest.mark.parametrize("name", vectors(2))
@pytest.mark.parametrize("size", [SHORT, LONG])
@pytest.mark.parametrize("floor", [1.0, 3.0, 1e5])
def test_a_floor(name: str, size: int, floor: float) -> None:
    check(vectors(size)[name], 200, floor)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 3, 50]), st.integers(0, 4))
def test_few_distinct_magnitudes(seed: int, distinct: int, floor: int) -> None:
    """Ties everywhere: the first ones are taken."""
    x = np.random.default_rng(seed).integers(0, distinct + 1, LONG)
    check(x.astype(np.float32), 200, float(floor))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("size", [SHORT, LONG])
def test_narrow_floats(dtype: jnp.dtype, size: int) -> None:
    x = jnp.asarray(vectors(size)["normal"]).astype(dtype)
    found = jax.jit(selection.largest, static_argnums=1)(x, 200)
    wanted = expected(np.asarray(x, np.float32), 200, 0.0)
    np.testing.assert_array_equal(found.places, wanted)


def test_denormals_are_told_apart() -> None:
    x = np.zeros(LONG, np.float32)
    x[100:110] = np.arange(10, dtype=np.uint32).view(np.float32)  # 0 to 9 ulps of zero
    found = jax.jit(selection.largest, static_argnums=1)(jnp.asarray(x), 4)
    np.testing.assert_array_equal(found.places, [106, 107, 108, 109])


@pytest.mark.parametrize(
    ("value", "dtype", "number"),
    [(1.0, np.float32, 1.0), (0.1, jnp.bfloat16, 0.1001), (0.1, np.float16, 0.1001)],
)
def test_bits_of_a_number_do_not_lie_below_it(
    value: float, dtype: jnp.dtype, number: float
) -> None:
    bits = np.asarray(magnitude_bits_of(value, dtype))
    unsigned = {2: np.uint16, 4: np.uint32}[jnp.dtype(dtype).itemsize]
    back = float(bits.astype(unsigned).view(dtype))
    assert value <= back
    assert back == pytest.approx(number, rel=1e-2)
