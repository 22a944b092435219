"""svd, atomo and qsvd against NumPy's SVD."""

import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxcomp import nbits
from jaxcomp.compressors._kit import matrices
from jaxcomp.compressors._kit.matrices import Factors
from jaxcomp.compressors.atomo import chances, draw, relative_chances
from jaxcomp.core.coding.payloads import Dense, Quantized
from jaxcomp.core.trees import spec_of
from tests import laws, references
from tests.laws import draws, make
from tests.tiers import tiers

# From 96 (r + 4) on the search is randomised: the smallest such side for rank 1.
LARGE = 480


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def orthonormal(rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(rows).normal(size=(rows, columns)))[0]


def of_lengths(lengths: np.ndarray, rows: int) -> np.ndarray:
    """A matrix with these singular values and random singular vectors."""
    columns = len(lengths)
    u, v = orthonormal(rows, columns), orthonormal(columns, columns)
    return (u * lengths @ v[::-1].T).astype(np.float32)


def energy(x: np.ndarray) -> float:
    return float(np.square(x, dtype=np.float64).sum())


@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (8,), (1, 1, 30), (5, 1), (4, 6), (3, 3, 2, 5), (2, 1, 9)]
)
def test_sides_are_those_of_the_matrix(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    expected = references.as_matrix(x)
    assert matrices.sides(shape) == expected.shape
    folded = np.asarray(matrices.fold(jnp.asarray(x)))
    assert folded.shape[0] >= folded.shape[1]
    if folded.shape != expected.shape:
        expected = expected.T
    np.testing.assert_array_equal(folded, expected)


@pytest.mark.parametrize(
    "shape", [(40, 30), (30, 40), (9, 200), (3, 3, 4, 16), (257,), (1000,), (20, 1, 20)]
)
@pytest.mark.parametrize("rank", tiers([1, 3], (3).__eq__))
def test_svd_is_the_best_of_its_rank(shape: tuple[int, ...], rank: int) -> None:
    x = normal(*shape)
    y = draws(f"svd(rank={rank})", x, 1)[0]
    expected = references.truncated_svd(x, rank)
    scale = np.abs(expected).max()
    # Gaps between singular values are a few percent: vectors are that less exact.
    np.testing.assert_allclose(y, expected, atol=1e-4 * scale)


@hypothesis.given(
    rows=st.integers(1, 12), columns=st.integers(1, 12), rank=st.integers(1, 5)
)
@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
def test_svd_errs_as_little_as_can_be(rows: int, columns: int, rank: int) -> None:
    x = normal(rows, columns, seed=rows * 13 + columns)
    y = draws(f"svd(rank={rank})", x, 1)[0]
    if rank * sum(matrices.sides(x.shape)) >= x.size:
        np.testing.assert_array_equal(y, x)
    else:
        best = energy(references.truncated_svd(x, rank) - x)
        assert energy(y - x) == pytest.approx(best, rel=1e-5, abs=1e-6 * energy(x))


@pytest.mark.parametrize("method", ["svd(rank=4)", "atomo(rank=4)"])
def test_a_tensor_goes_as_it_is_where_pairs_do_not_pay(method: str) -> None:
    x = jnp.asarray(normal(64))  # 8 x 8: four pairs are 64 numbers
    payload, _ = make(method).compress(x, (), jax.random.key(0))
    assert isinstance(payload, Dense)
    assert make(method).contraction(spec_of(x)) == 1
    np.testing.assert_array_equal(make(method).decompress(payload, x), x)
    payload, _ = make(method).compress(jnp.ones((8, 9)), (), jax.random.key(0))
    assert isinstance(payload, Factors)


SPECTRA = {
    "flat": np.ones(LARGE),
    "nearly flat": np.linspace(1, 0.9, LARGE),
    "falling": 1 / np.arange(1.0, LARGE + 1),
    "steep": np.logspace(0, -12, LARGE),
    "three equal": np.where(np.arange(LARGE) < 3, 1, 0.5),
    "rank one": np.where(np.arange(LARGE) < 1, 1.0, 0),
    "rank five": np.maximum(5.0 - np.arange(LARGE), 0),
    "zero": np.zeros(LARGE),
}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_search_in_large_matrices_finds_the_best(spectrum: str) -> None:
    """Whatever the spectrum, and its result is a projection of x."""
    lengths = SPECTRA[spectrum]
    x = of_lengths(lengths, LARGE)
    y = draws("svd(rank=1)", x, 1)[0]
    assert energy(y) == pytest.approx(lengths[0] ** 2, rel=2e-3, abs=1e-12)
    # A projection: kept and lost energy make up the whole.
    assert energy(y) + energy(y - x) == pytest.approx(energy(x), rel=1e-5)
    if lengths[1] < 0.999 * lengths[0]:  # else there are many best ones
        q = orthonormal(LARGE, LARGE)
        expected = lengths[0] * np.outer(q[:, 0], q[::-1, 0])
        np.testing.assert_allclose(y, expected, atol=1e-3 * np.abs(expected).max())


def test_large_matrices_under_vmap_are_those_of_a_loop() -> None:
    xs = jnp.asarray(normal(2, LARGE, LARGE + 3))
    laws.check_vmap(make("svd(rank=1)"), xs, jax.random.split(jax.random.key(0), 2))


def test_a_nan_in_a_large_matrix_surfaces() -> None:
    x = normal(LARGE, LARGE)
    for value in (np.nan, np.inf):
        x[3, 5] = value
        assert not np.isfinite(draws("svd(rank=1)", x, 1)).any()


@pytest.mark.parametrize("method", ["svd(rank=1)", "svd(rank=2)", "qsvd(rank=2)"])
def test_a_projection_does_not_leave_the_range_of_numbers(method: str) -> None:
    signs = np.random.default_rng(0).choice([-1, 1], size=(20, 3, 87))
    for dtype in (jnp.float32, jnp.float16):
        largest = float(jnp.finfo(dtype).max)
        for x in jnp.asarray(signs * largest, dtype):
            laws.check_finite(make(method), x, jax.random.key(0))


@pytest.mark.parametrize("shape", [(20, 30), (LARGE, LARGE)])
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**110])
def test_powers_of_two_change_nothing_else(
    scale: float, shape: tuple[int, ...]
) -> None:
    x = normal(*shape)
    y = draws("svd(rank=1)", x, 1)
    np.testing.assert_allclose(draws("svd(rank=1)", x * scale, 1), y * scale, rtol=1e-6)


@hypothesis.given(
    lengths=st.lists(st.floats(0, 1e3, width=32), min_size=12, max_size=12),
    count=st.sampled_from([1, 4, 11]),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_chances_are_those_of_water_filling(lengths: list[float], count: int) -> None:
    falling = np.sort(np.asarray(lengths, np.float32))[::-1]
    falling = np.where(falling < 1e-6, 0, falling)  # no numbers that flush to zero
    expected = references.atom_chances(falling.astype(np.float64), count)
    actual = np.asarray(chances(jnp.asarray(falling), count))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert (actual <= 1).all()


LENGTHS = {
    "equal": np.ones(9),
    "one large": np.array([100.0, 3, 2, 2, 1, 1, 0.5, 0.1, 0]),
    "three large": np.array([9e3, 8e3, 7e3, 1, 1, 1, 1e-3, 1e-3, 0]),
    "falling": 1 / np.arange(1.0, 10),
    "too few": np.array([5.0, 3, 0, 0, 0, 0, 0, 0, 0]),
    "just enough": np.array([5.0, 3, 1, 1e-3, 0, 0, 0, 0, 0]),
    "zero": np.zeros(9),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("count", [1, 4, 8])
def test_every_triple_is_drawn_with_its_chance(name: str, count: int) -> None:
    lengths = jnp.asarray(LENGTHS[name], jnp.float32)
    given = jax.jit(chances, static_argnums=1)(lengths, count)
    offsets = (np.arange(4096, dtype=np.float32) + 0.5) / 4096
    drawn = jax.jit(jax.vmap(draw, (None, None, 0)), static_argnums=1)(
        given, count, jnp.asarray(offsets)
    )
    drawn, p = np.asarray(drawn), np.asarray(given, np.float64)
    frequency = np.bincount(drawn.reshape(-1), minlength=9) / 4096
    # Those without a chance may fill the places, once or more: they are zero.
    np.testing.assert_allclose(frequency[p > 0], p[p > 0], atol=3 / 4096)
    for u, places in zip(offsets, drawn, strict=True):
        real = [i for i in places if p[i] > 0]
        assert len(set(real)) == len(real)
        if u in offsets[::512]:
            assert real == references.draw_atoms(p, count, float(u))


def test_an_offset_just_below_one_draws_no_triple_twice() -> None:
    lengths = jnp.sort(jnp.asarray(normal(1000) ** 2 + 0.1), descending=True)
    p = chances(lengths, 64)
    drawn = np.asarray(draw(p, 64, jnp.float32(1 - 2**-24)))
    assert len(set(drawn)) == 64


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("name", LENGTHS)
def test_relative_chances_are_their_reference(name: str, count: int) -> None:
    expected = references.relative_atom_chances(LENGTHS[name], count)
    falling = jnp.asarray(LENGTHS[name], jnp.float32)
    np.testing.assert_allclose(relative_chances(falling, count), expected, rtol=1e-6)


# With the room of 1 and 2 the chances are cut: sum_i s_i / s_1 is 2.3 here.
@pytest.mark.parametrize(
    ("rank", "chance"),
    tiers(
        [*((r, "optimal") for r in (1, 3, 5)), *((r, "relative") for r in (1, 2, 5))],
        lambda case: case not in [(1, "relative"), (5, "optimal")],
    ),
)
def test_atomo_errs_as_its_chances_say(rank: int, chance: str) -> None:
    x = of_lengths(np.array([9.0, 4, 3, 2, 1, 1, 0.5, 0.5, 0.1, 0.01]), rows=15)
    s = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    optimal = references.atom_chances(s, rank)
    relative = references.relative_atom_chances(s, rank)
    p = {"optimal": optimal, "relative": relative}[chance]
    expected = (s**2 * (1 / p - 1)).sum()
    outputs = draws(f"atomo({rank=}, {chance=})", x, 8000)
    errors = np.square(outputs - x).sum(axis=(1, 2))
    allowed = 5 * outputs.std(axis=0) / math.sqrt(len(outputs)) + 1e-5
    assert (np.abs(outputs.mean(axis=0) - x) <= allowed).all()
    if chance == "relative":
        # How many triples were drawn: one of both numbers beside the mean.
        ranks = np.linalg.matrix_rank(outputs[:400], tol=1e-4)
        assert set(ranks) <= {math.floor(p.sum() + 1e-6), math.ceil(p.sum() - 1e-6)}
        assert ranks.mean() == pytest.approx(p.sum(), abs=0.15)
    tolerance = 5 * errors.std() / math.sqrt(len(errors)) + 1e-6 * energy(x)
    assert errors.mean() == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("rank", tiers([1, 4], (4).__eq__))
def test_atomo_is_unbiased_on_more_triples_than_a_few(rank: int) -> None:
    laws.check_unbiased(make(f"atomo(rank={rank})"), jnp.asarray(normal(13, 18)))
    laws.check_unbiased(make(f"atomo(rank={rank})"), jnp.asarray(normal(3, 3, 3, 11)))


def test_relative_chances_contract_no_less_than_declared() -> None:
    """Where all singular values but the first are equal, and small, it is the bound."""
    method = make("atomo(rank=3, chance='relative')")
    x = of_lengths(np.array([3.0, 1, 1, 1]), rows=40)
    assert method.contraction(spec_of(jnp.asarray(x))) == pytest.approx(0.5)
    laws.check_contraction(method, jnp.asarray(x))
    errors = np.square(draws(method.name, x, 4000) - x).sum(axis=(1, 2))
    assert errors.mean() == pytest.approx(0.5 * energy(x), rel=0.05)


def test_quantised_values_of_atomo_stay_unbiased() -> None:
    method = "atomo(rank=2) | qsgd(levels=7)"
    assert make(method).unbiased
    laws.check_unbiased(make(method), jnp.asarray(normal(9, 11)))


@pytest.mark.parametrize("levels", tiers([1, 127], (1).__eq__))
def test_unbiased_qsvd_is_unbiased(levels: int) -> None:
    method = f"qsvd(rank=3, levels={levels}, unbiased=True)"
    laws.check_unbiased(make(method), jnp.asarray(normal(9, 11)))


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_qsvd_of_many_levels_is_svd(norm: str) -> None:
    x = normal(30, 40)
    y = draws(f"qsvd(rank=3, levels=32767, norm={norm!r})", x, 1)[0]
    expected = references.truncated_svd(x, 3)
    np.testing.assert_allclose(y, expected, atol=1e-3 * np.abs(expected).max())


def test_qsvd_sends_singular_values_exactly() -> None:
    """Each vector is a bucket, and the largest element of each is a level."""
    x = normal(30, 40)
    payload, _ = make("qsvd(rank=3)").compress(jnp.asarray(x), (), jax.random.key(0))
    u, s, v = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    left, right = np.sort(payload.left.units), np.sort(payload.right.units)
    assert left.shape == right.shape == (3,)
    long = np.sort(s[:3] * np.abs(v[:3]).max(axis=1))  # 40 is the longer side
    short = np.sort(np.abs(u[:, :3]).max(axis=0))
    np.testing.assert_allclose(left / left[0], long / long[0], rtol=1e-4)
    np.testing.assert_allclose(right * 127, short, rtol=1e-4)


def test_qsvd_errs_no_more_than_declared() -> None:
    method = "qsvd(rank=3, levels=4, norm='max')"
    x = jnp.asarray(normal(14, 12))
    assert make(method).contraction(spec_of(x)) is not None
    laws.check_contraction(make(method), x)


def test_ternary_vectors_take_two_bits_an_element() -> None:
    x = jnp.asarray(normal(128, 256))
    payload, _ = make("qsvd(rank=2, levels=1)").compress(x, (), jax.random.key(0))
    assert nbits(payload) <= 2 * 2 * (128 + 256) + 4 * 32
    row = make("qsgd(levels=1, bucket=256, norm='max')").decompress(
        payload.left, jax.ShapeDtypeStruct((2, 256), "float32")
    )
    assert all(len(np.unique(np.abs(r))) == 2 for r in np.asarray(row))


def test_qsvd_rounds_small_tensors_themselves() -> None:
    payload, _ = make("qsvd").compress(jnp.ones(64), (), jax.random.key(0))
    assert isinstance(payload, Quantized)
    np.testing.assert_allclose(make("qsvd").decompress(payload, jnp.ones(64)), 1)
