"""The laws of a compressor, as functions that raise AssertionError.

Each takes a `Compressor` and what to try it on, so that any suite can call them on a
method of its own. They accept lifted compressors too: read "array" as "tree".
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import make_compressor, nbits
from jaxcomp.core.coding.payloads import fuse, map_values, split
from jaxcomp.core.trees import spec_of, wide_spec
from jaxcomp.core.types import Compressor

# Keys per compiled call: laws that share a shape share the program.
CHUNK = 1000


@functools.cache
def make(method: str) -> Compressor:
    """One object for each method, so that all tests share its compiled programs."""
    return make_compressor(method)


def heavy(size: int = 257, seed: int = 0, freedom: int = 3) -> np.ndarray:
    """A heavy-tailed vector."""
    values = np.random.default_rng(seed).standard_t(freedom, size=size)
    return values.astype(np.float32)


def through(method: str, x: np.ndarray | jax.Array) -> np.ndarray:
    """C(x) under one key."""
    keys = jax.random.split(jax.random.key(0), 1)
    return np.asarray(outputs(make(method), jnp.asarray(x), keys))[0]


def draws(method: str, x: np.ndarray, count: int) -> np.ndarray:
    """C(x) for `count` keys, in the shape of x, as float64."""
    keys = jax.random.split(jax.random.key(0), count)
    chunks = [keys[i : i + CHUNK] for i in range(0, count, CHUNK)]
    rows = [np.asarray(outputs(make(method), jnp.asarray(x), k)) for k in chunks]
    return np.concatenate(rows).astype(np.float64).reshape(-1, *np.shape(x))


def flat(tree: Any) -> np.ndarray:
    """All elements of a tree as one float64 vector."""
    leaves = [
        np.asarray(x).astype(np.float64).reshape(-1) for x in jax.tree.leaves(tree)
    ]
    return np.concatenate(leaves)


@functools.partial(jax.jit, static_argnums=0)
def outputs(compressor: Compressor, x: Any, keys: jax.Array) -> jax.Array:
    """One row in float32 for each key: all elements of C(x).

    A method with state goes from draw to draw as it goes from step to step.
    """
    spec = spec_of(x)

    def one(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        payload, state = compressor.compress(x, state, key)
        leaves = jax.tree.leaves(compressor.decompress(payload, spec))
        row = jnp.concatenate([y.reshape(-1).astype(jnp.float32) for y in leaves])
        return state, row

    state = compressor.init(spec)
    if jax.tree.leaves(state):
        return jax.lax.scan(one, state, keys)[1]
    return jax.vmap(lambda key: one(state, key)[1])(keys)


def check_round_trip(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """C(x) has the shapes and dtypes of x; the state keeps its own."""
    spec = spec_of(x)
    _, output, after = jax.eval_shape(functools.partial(run, compressor), x, key)
    assert spec_of(output) == spec
    assert spec_of(after) == spec_of(jax.eval_shape(lambda: compressor.init(spec)))


def check_finite(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """Finite input gives a finite payload and output, within the declared support."""
    assert np.isfinite(flat(x)).all(), "the law speaks of finite input"
    payload, output, _ = run(compressor, x, key)
    assert np.isfinite(flat(payload)).all()
    assert np.isfinite(flat(output)).all()
    assert np.count_nonzero(flat(output)) <= compressor.support(spec_of(x))


def check_zero(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """Zero answers zero, exactly: what has no gradient does not move."""
    nothing = jax.tree.map(jnp.zeros_like, x)
    _, output, _ = run(compressor, nothing, key)
    np.testing.assert_array_equal(flat(output), flat(nothing))


def check_zeros_stay(compressor: Compressor, x: jax.Array, key: jax.Array) -> None:
    """An element that is zero among others answers zero."""
    _, output, _ = run(compressor, x, key)
    np.testing.assert_array_equal(flat(output)[flat(x) == 0], 0)


def check_unbiased(
    compressor: Compressor, x: Any, draws: int = 12 * CHUNK, z: float = 6.0
) -> None:
    """E[C(x)] == x, by three tests that see different kinds of bias.

    Args:
      compressor: the method under test.
      x: array or tree.
      draws: number of keys; a multiple of `CHUNK`.
      z: standard errors that chance may explain. 6 leaves room for thousands of tests.
    """
    target = flat(x)
    errors = np.concatenate(list(_draws(compressor, x, draws))) - target
    mean, variance = errors.mean(axis=0), errors.var(axis=0)
    rounding = 4 * _eps(x) * np.abs(target).max()
    # One element. A rare event may not have happened often enough to show its own
    # variance, hence the average variance beside it.
    allowed = z * np.sqrt((variance + variance.mean()) / draws) + rounding
    worst = int(np.argmax(np.abs(mean) - allowed))
    assert abs(mean[worst]) <= allowed[worst], f"bias {mean[worst]:g} at {worst}"
    # A small bias everywhere. Tail of a weighted chi-square: Laurent and Massart,
    # Adaptive estimation of a quadratic functional, Annals of Statistics, 2000.
    spread = z * np.sqrt(2 * np.square(variance).sum()) + z**2 * variance.max()
    limit = variance.sum() + spread + draws * target.size * rounding**2
    assert draws * np.square(mean).sum() <= limit, "the output is off as a whole"
    # A wrong factor: the bias lies along x.
    along = errors @ target
    limit = z * along.std() / np.sqrt(draws) + rounding * np.abs(target).sum()
    assert abs(along.mean()) <= limit, "the output is too long or too short"


def check_contraction(
    compressor: Compressor, x: Any, draws: int = 4 * CHUNK, z: float = 5.0
) -> None:
    """E|x - C(x)|^2 <= (1 - delta) |x|^2 for the declared delta.

    Args:
      compressor: the method under test; declares a contraction for the shape of x.
      x: array or tree, not all zero.
      draws: number of keys; a multiple of `CHUNK`.
      z: standard errors of the mean that chance may explain.
    """
    delta = compressor.contraction(spec_of(x))
    assert delta is not None, "no contraction is declared"
    assert 0 <= delta <= 1
    target = flat(x)
    rows = _draws(compressor, x, draws)
    squares = np.concatenate([np.square(row - target).sum(axis=1) for row in rows])
    squares /= np.square(target).sum()
    allowed = z * squares.std() / np.sqrt(draws) + 8 * _eps(x)
    assert squares.mean() <= 1 - delta + allowed, f"{squares.mean()} > 1 - {delta}"


def check_aligned(compressor: Compressor, x: Any, other: Any, key: jax.Array) -> None:
    """Places do not follow from x, and decompress is linear in `values`."""
    assert compressor.aligned
    a, decoded_a, state_a = run(compressor, x, key)
    b, decoded_b, state_b = run(compressor, other, key)
    _assert_same(state_a, state_b)
    _assert_same(_without_values(a), _without_values(b))

    b_values: list[jax.Array] = []
    map_values(lambda values: b_values.extend(values) or values, b)

    def mix(values: list[jax.Array]) -> list[jax.Array]:
        return [2 * v - w for v, w in zip(values, b_values, strict=True)]

    decode = jax.jit(lambda payload: compressor.decompress(payload, spec_of(x)))
    mixed = flat(decode(map_values(mix, a)))
    expected = 2 * flat(decoded_a) - flat(decoded_b)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=4 * _eps(x) * scale)


def check_same_key_same_payload(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """The key is the only source of randomness."""
    state = compressor.init(spec_of(x))
    first = compressor.compress(x, state, key)
    _assert_same(first, compressor.compress(x, state, key))


def check_non_finite_surfaces(
    compressor: Compressor, x: jax.Array, draws: int = CHUNK
) -> None:
    """A NaN or an infinity is seen or left out; it never turns into a finite number.

    Under every key the output either has a non-finite element, or is the one for x with
    a zero in that place; and under some key it is seen.
    """
    for place in (0, x.size // 2, x.size - 1):
        left_out = np.concatenate(list(_draws(compressor, _plant(x, place, 0), draws)))
        for value in (np.nan, np.inf, -np.inf):
            planted = _plant(x, place, value)
            rows = np.concatenate(list(_draws(compressor, planted, draws)))
            seen = ~np.isfinite(rows).all(axis=1)
            assert seen.any(), f"{value} at {place} never shows"
            np.testing.assert_array_equal(rows[~seen], left_out[~seen])
    for value in (np.nan, np.inf):
        rows = np.concatenate(list(_draws(compressor, jnp.full_like(x, value), draws)))
        assert (~np.isfinite(rows)).any(axis=1).all(), f"{value} everywhere is lost"


def check_long_vectors_hide_nothing(
    compressor: Compressor, x: jax.Array, draws: int = 16
) -> None:
    """As `check_non_finite_surfaces`, where reductions work in another way.

    XLA's maximum over thousands of elements forgets a NaN, which a short vector does
    not show. Fewer draws: whether the place is ever seen is for the other law.
    """
    keys = jax.random.split(jax.random.key(0), draws)
    for place in (0, x.size // 2, x.size - 1):
        left_out = np.asarray(outputs(compressor, _plant(x, place, 0), keys))
        for value in (np.nan, np.inf):
            rows = np.asarray(outputs(compressor, _plant(x, place, value), keys))
            hidden = np.isfinite(rows).all(axis=1)
            np.testing.assert_array_equal(rows[hidden], left_out[hidden])


def check_no_recompilation(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """New values, a new key and the state of the last step need no new program."""
    spec = spec_of(x)
    traces = []

    @jax.jit
    def step(x: Any, state: Any, key: jax.Array) -> Any:
        traces.append(1)  # runs when the step is traced, not when it is called
        payload, state = compressor.compress(x, state, key)
        return compressor.decompress(payload, spec), state

    # Tracing is what a second compilation starts with, and costs no compilation.
    _, _, state = run(compressor, x, key)
    step.trace(x, compressor.init(spec), key)
    step.trace(jax.tree.map(jnp.negative, x), state, jax.random.fold_in(key, 1))
    assert len(traces) == 1, "the second step was compiled again"


def check_vmap(compressor: Compressor, xs: Any, keys: jax.Array) -> None:
    """`vmap` over workers sends what a loop over workers sends."""
    mapped, _ = _run_workers(compressor, xs, keys)
    for i, key in enumerate(keys):
        alone = run(compressor, _worker(xs, i), key)
        pairs = zip(
            jax.tree.leaves(_worker(mapped, i)), jax.tree.leaves(alone), strict=True
        )
        for a, b in pairs:
            # Sums may be taken in another order; places and levels may not move.
            exact = not jnp.issubdtype(b.dtype, jnp.floating)
            rtol = 0 if exact else 4 * float(jnp.finfo(b.dtype).eps)
            np.testing.assert_allclose(flat(a), flat(b), rtol=rtol)


def check_sum(compressor: Compressor, xs: Any, keys: jax.Array) -> None:
    """`decompress_sum` and `accumulate` add what each payload decodes to."""
    _, (total, two, rows) = _run_workers(compressor, xs, keys)
    assert spec_of(total) == spec_of(two) == wide_spec(spec_of(_worker(xs, 0)))
    expected = flat(_worker(rows, 0)) + flat(_worker(rows, 1))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(flat(two), expected, rtol=1e-6, atol=1e-6 * scale)
    expected = sum(flat(_worker(rows, i)) for i in range(len(keys)))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(flat(total), expected, rtol=1e-6, atol=1e-6 * scale)


def check_bits(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """The size is known before anything is sent, and no bound lies above it."""
    promised, _, _ = jax.eval_shape(functools.partial(run, compressor), x, key)
    payload, _, _ = run(compressor, x, key)
    assert nbits(payload) == nbits(promised)
    assert 0 < compressor.ideal_bits(spec_of(x)) <= nbits(payload) * (1 + 1e-9)


def check_fuses(compressor: Compressor, x: Any, key: jax.Array) -> None:
    """The payload travels in one buffer of no more than two words of padding."""
    payload, _, _ = run(compressor, x, key)
    words = jax.jit(fuse)(payload)
    assert words.size * 32 < nbits(payload) + 2 * 32
    back = jax.jit(lambda words: split(words, spec_of(payload)))(words)
    assert spec_of(back) == spec_of(payload)
    bits = [
        [np.asarray(x).tobytes() for x in jax.tree.leaves(y)] for y in (back, payload)
    ]
    assert bits[0] == bits[1]


@functools.partial(jax.jit, static_argnums=0)
def run(compressor: Compressor, x: Any, key: jax.Array) -> Any:
    """Payload, C(x) and new state, as one program that the laws share."""
    spec = spec_of(x)
    payload, state = compressor.compress(x, compressor.init(spec), key)
    return payload, compressor.decompress(payload, spec), state


@functools.partial(jax.jit, static_argnums=0)
def _run_workers(compressor: Compressor, xs: Any, keys: jax.Array) -> Any:
    """What `run` gives for each, sums of all payloads and of two, and each decoded."""
    spec = spec_of(_worker(xs, 0))
    results = jax.vmap(functools.partial(run, compressor))(xs, keys)
    payloads = results[0]
    rows = jax.vmap(lambda p: compressor.decompress(p, wide_spec(spec)))(payloads)
    two = compressor.accumulate(_worker(rows, 0), _worker(payloads, 1))
    return results, (compressor.decompress_sum(payloads, spec), two, rows)


def _draws(compressor: Compressor, x: Any, draws: int) -> Iterator[np.ndarray]:
    """Chunks of rows of C(x), one row for each key."""
    assert draws % CHUNK == 0, f"draws is a multiple of {CHUNK}"
    for i in range(draws // CHUNK):
        keys = jax.random.split(jax.random.key(i), CHUNK)
        yield np.asarray(outputs(compressor, x, keys), np.float64)


def _eps(x: Any) -> float:
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x))


def _plant(x: jax.Array, place: int, value: float) -> jax.Array:
    return x.reshape(-1).at[place].set(value).reshape(x.shape)


def _worker(xs: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], xs)


def _without_values(payload: Any) -> Any:
    return map_values(lambda values: [jnp.zeros_like(v) for v in values], payload)


def _assert_same(a: Any, b: Any) -> None:
    assert spec_of(a) == spec_of(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)
