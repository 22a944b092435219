"""Elias-Fano against a bit-by-bit coder, and its size against the entropy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomp import nbits
from jaxcomp.compressors._kit.making import subset_bits
from jaxcomp.core.coding import indices
from jaxcomp.core.coding.indices import EliasFano
from tests import references


@st.composite
def ascending(draw: st.DrawFn, sizes: st.SearchStrategy) -> tuple[list[int], int]:
    """Places below a limit; sizes draws the limit and their number."""
    limit, count = draw(sizes)
    places = draw(st.lists(st.integers(0, limit - 1), min_size=count, max_size=count))
    return sorted(places), limit


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def there_and_back(places: jax.Array, limit: int, count: int, code: str) -> Any:
    coded = indices.encode(places, limit, code)
    return coded, indices.decode(coded, limit, count)


def check_round_trip(case: tuple[list[int], int]) -> None:
    places, limit = case
    for code in indices.CODES:
        given_places = jnp.asarray(places, jnp.uint32)
        coded, decoded = there_and_back(given_places, limit, len(places), code)
        assert nbits(coded) == indices.coded_bits(limit, len(places), code)
        np.testing.assert_array_equal(decoded, places)


FEW = [(1, 1), (1, 3), (8, 3), (40, 40), (300, 70), (5000, 1), (5000, 33)]


@settings(max_examples=100, deadline=None)
@given(ascending(st.sampled_from(FEW)))
def test_round_trip_of_ascending_places(case: tuple[list[int], int]) -> None:
    check_round_trip(case)


@pytest.mark.parametrize(
    ("places", "limit"),
    [([3, 500, 999], 1000), ([0], 1), ([7, 7, 7], 8), (list(range(40)), 40)],
)
def test_the_bits_are_those_of_elias_and_fano(places: list[int], limit: int) -> None:
    coded = indices.encode(jnp.asarray(places, jnp.uint32), limit, "elias_fano")
    assert isinstance(coded, EliasFano)
    low, high = references.elias_fano(places, limit)
    np.testing.assert_array_equal(coded.low, np.asarray(low, np.uint32))
    np.testing.assert_array_equal(coded.high, np.asarray(high, np.uint32))


@pytest.mark.parametrize("keep", [0.001, 0.01])
@pytest.mark.parametrize("size", [1_000_000, 25_000_000])
def test_places_cost_little_more_than_their_information(keep: float, size: int) -> None:
    count = round(keep * size)
    assert indices.coded_bits(size + 1, count) <= 1.07 * subset_bits(size, count)


@pytest.mark.parametrize(("limit", "count"), [(2**32 - 1, 10), (70_000, 100)])
def test_wide_places(limit: int, count: int) -> None:
    rng = np.random.default_rng(0)
    places = np.sort(rng.choice(limit, count, replace=False))
    places[-1] = limit - 1
    for code in indices.CODES:
        places_in = jnp.asarray(places, jnp.uint32)
        _, decoded = there_and_back(places_in, limit, count, code)
        np.testing.assert_array_equal(decoded, places)


def test_auto_takes_the_smaller_code() -> None:
    for limit, count in [(10, 1), (10, 9), (1000, 1), (1000, 500), (10**6, 1000)]:
        sizes = [indices.coded_bits(limit, count, c) for c in indices.CODES[1:]]
        assert indices.coded_bits(limit, count) == min(sizes)
        coded = indices.encode(jnp.zeros(count, jnp.uint32), limit)
        assert isinstance(coded, EliasFano) == (sizes[0] < sizes[1])
