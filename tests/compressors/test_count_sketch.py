"""count_sketch against tables filled element by element, and its statistics."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxcomp.core.coding.payloads import Dense, Seeded
from jaxcomp.core.trees import spec_of
from tests import laws, references
from tests.laws import draws, make
from tests.laws import heavy as of_freedom

heavy = functools.partial(of_freedom, freedom=2)


def send(method: str, x: np.ndarray, seed: int = 0) -> tuple[Seeded, np.ndarray]:
    """The payload and C(x)."""
    payload, output, _ = laws.run(make(method), jnp.asarray(x), jax.random.key(seed))
    return payload, np.asarray(output)


def hashes(method: str, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Places and signs [r, n] under one key, read off the tables of unit vectors."""
    compressor = make(method)
    key = jax.random.key(seed)
    payloads, _ = jax.jit(jax.vmap(lambda x: compressor.compress(x, (), key)))(
        jnp.eye(size)
    )
    tables = np.asarray(payloads.values)  # [n, r, w]
    touched = tables != 0
    assert (touched.sum(axis=2) == 1).all(), "an element goes to one place of each row"
    unit = np.abs(tables).max()
    np.testing.assert_array_equal(np.abs(tables[touched]), unit)
    return touched.argmax(axis=2).T, np.sign(tables.sum(axis=2)).T


@hypothesis.given(
    size=st.integers(20, 90),
    rows=st.integers(1, 6),
    ratio=st.floats(0.08, 0.8),
    estimate=st.sampled_from(["damped", "mean", "median"]),
)
@hypothesis.settings(max_examples=3, deadline=None, derandomize=True)
def test_it_is_a_count_sketch(
    size: int, rows: int, ratio: float, estimate: str
) -> None:
    """With the hash read off unit vectors, tables and estimates are those of a loop."""
    hypothesis.assume(estimate != "median" or rows >= 3)
    width = max(1, round(ratio * size / rows))
    hypothesis.assume(rows * width < size)
    method = f"count_sketch(ratio={ratio!r}, rows={rows}, estimate={estimate!r})"
    x = heavy(size)
    places, signs = hashes(method, size)
    tables = references.sketch_tables(x, places, signs, width)
    payload, y = send(method, x)
    sent = np.asarray(payload.values, np.float64)
    np.testing.assert_allclose(
        sent / np.abs(sent).max(), tables / np.abs(tables).max(), atol=1e-6
    )
    numbers = references.sketch_estimates(tables, places, signs)
    variance = (-(-size // width) - 1) / rows
    expected = {
        "damped": numbers.mean(axis=0) / (1 + variance),
        "mean": numbers.mean(axis=0),
        "median": np.median(numbers, axis=0),
    }[estimate]
    np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(tables).max())


def test_two_elements_meet_with_chance_one_over_the_width() -> None:
    """And never within a fold; signs of those that meet agree half of the time."""
    size, width, count = 30, 7, 4000
    compressor = make("count_sketch(ratio=0.2334, estimate='mean')")
    keys = jax.random.split(jax.random.key(0), count)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def table(key: jax.Array, x: jax.Array) -> jax.Array:
        return compressor.compress(x, (), key)[0].values[0]

    tables = np.asarray(table(keys, jnp.eye(size)))
    assert tables.shape == (count, size, width)
    tables = tables / np.abs(tables).max()
    products = np.einsum("kiw,kjw->kij", tables, tables)
    meet = np.abs(products).mean(axis=0)
    # The last fold reaches back from the end: 0-6, 7-13, 14-20, 21-27 and 28-29.
    fold = np.arange(size) // width
    apart = fold[:, None] != fold
    assert (meet[~apart & ~np.eye(size, dtype=bool)] == 0).all()
    deviation = np.sqrt(1 / width * (1 - 1 / width) / count)
    np.testing.assert_allclose(meet[apart], 1 / width, atol=5 * deviation)
    agree = products.mean(axis=0)[apart]
    np.testing.assert_allclose(agree, 0, atol=5 * np.sqrt(1 / width / count))


@pytest.mark.parametrize(("ratio", "rows"), [(0.1, 1), (0.3, 3), (0.02, 2)])
@pytest.mark.parametrize("source", ["heavy", "constant", "one"])
def test_the_mean_errs_as_the_folds_say(ratio: float, rows: int, source: str) -> None:
    """sum_l x_l^2 (n - |fold of l|) / (r w), which is below the declared bound."""
    size = 203
    x = {
        "heavy": heavy(size),
        "constant": np.ones(size, np.float32),
        "one": np.where(np.arange(size) == 202, 1, 0).astype(np.float32),
    }[source]
    width = max(1, round(ratio * size / rows))
    folds = -(-size // width)
    lengths = np.full(folds, width)
    lengths[-1] = size - width * (folds - 1)
    others = size - lengths[np.arange(size) // width]
    expected = (x.astype(np.float64) ** 2 * others).sum() / (rows * width)
    method = f"count_sketch(ratio={ratio}, rows={rows}, estimate='mean')"
    errors = np.square(draws(method, x, 4000) - x).sum(axis=1)
    tolerance = 5 * errors.std() / np.sqrt(len(errors))
    assert errors.mean() == pytest.approx(expected, abs=tolerance)
    assert expected <= (folds - 1) / rows * np.square(x, dtype=np.float64).sum() * (
        1 + 1e-9
    )


def test_the_damped_mean_of_one_row_is_a_projection() -> None:
    """Where folds are full: applying it again under the same key changes nothing."""
    method = "count_sketch(ratio=0.1)"
    _, y = send(method, heavy(200))
    _, again = send(method, y)
    np.testing.assert_allclose(again, y, atol=1e-5 * np.abs(y).max())


def test_heavy_elements_come_out_of_the_median_unharmed() -> None:
    """As FetchSGD uses it: few large elements in small noise, the largest kept."""
    size = 20_000
    x = 0.01 * np.random.default_rng(0).normal(size=size).astype(np.float32)
    large = np.random.default_rng(1).choice(size, 20, replace=False)
    x[large] = np.where(np.arange(20) % 2, 10, -10)
    _, y = send("count_sketch(ratio=0.2, rows=5, estimate='median', keep=0.001)", x)
    assert set(np.flatnonzero(y)) == set(large)
    np.testing.assert_allclose(y[large], x[large], atol=0.2)
    # The mean is disturbed by every collision of two large ones.
    _, mean = send("count_sketch(ratio=0.2, rows=5, estimate='mean')", x)
    assert np.abs(mean - x).max() > 1


def test_keep_leaves_the_largest_estimates_as_they_are() -> None:
    x = heavy(1000)
    method = "count_sketch(ratio=0.3, rows=3, estimate='median'{})"
    _, all_ = send(method.format(""), x)
    _, few = send(method.format(", keep=0.05"), x)
    np.testing.assert_array_equal(few, references.top_k(all_, 50))
    kept = make(method.format(", keep=0.05"))
    assert not kept.unbiased
    assert not kept.aligned
    assert kept.contraction(spec_of(x)) is None


def test_tables_of_a_shared_key_add_up() -> None:
    method = "count_sketch(ratio=0.2, rows=2, estimate='mean')"
    x, other = heavy(100), heavy(100, seed=1)
    one, two, both = (send(method, v)[0] for v in (x, other, x + other))
    scale = float(jnp.abs(both.values).max())
    np.testing.assert_allclose(one.values + two.values, both.values, atol=1e-5 * scale)


def test_a_non_finite_element_is_seen_in_the_median() -> None:
    method = "count_sketch(ratio=0.3, rows=3, estimate='median', keep=0.01)"
    laws.check_non_finite_surfaces(make(method), jnp.asarray(heavy(120)))


def test_estimates_do_not_leave_the_range_of_numbers() -> None:
    signs = np.random.default_rng(0).choice([-1, 1], size=(5, 300))
    for method in ("count_sketch", "count_sketch(rows=4)", "count_sketch(keep=0.1)"):
        for dtype in (jnp.float32, jnp.float16):
            for x in jnp.asarray(signs * float(jnp.finfo(dtype).max), dtype):
                laws.check_finite(make(method), x, jax.random.key(0))
                laws.check_finite(make(method), jnp.abs(x), jax.random.key(0))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_tensor_no_larger_than_its_table_goes_as_it_is(size: int) -> None:
    x = jnp.asarray(heavy(size))
    compressor = make("count_sketch(rows=5)")
    payload, _ = compressor.compress(x, (), jax.random.key(0))
    assert isinstance(payload, Dense)
    assert compressor.contraction(spec_of(x)) == 1
    np.testing.assert_array_equal(compressor.decompress(payload, x), x)
