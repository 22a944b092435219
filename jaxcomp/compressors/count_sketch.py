"""Count sketch: send sums of elements with random signs."""

import math
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import selection
from jaxcomp.compressors._kit.making import Keep, compressor, kept
from jaxcomp.core import prng
from jaxcomp.core.coding.payloads import Dense, Seeded
from jaxcomp.core.specs import Range, SpecError, method
from jaxcomp.core.trees import vary_like, wide_spec, widen
from jaxcomp.core.types import Array, Compressor, Payload, Spec, State

MAX_ROWS = 32  # a random word has one bit for each row, which gives the sign
Ratio = Annotated[
    float, Range(above=0, below=1, says="numbers sent per element, in (0, 1)")
]


@method("ratio", "rows", "estimate")
def count_sketch(
    name: str,
    ratio: Ratio = 0.1,
    rows: Annotated[int, Range(1, MAX_ROWS)] = 1,
    estimate: Literal["damped", "mean", "median"] = "damped",
    keep: Keep | None = None,
) -> Compressor:
    """Send a table of `rows` times w sums of elements with random signs.

    The table has the sums T_j[h_j(i)] += s_j(i) x_i. Each of the r = rows numbers
    s_j(i) T_j[h_j(i)] is an unbiased estimate of x_i. The hash function h_j divides x
    into F = ceil(n / w) folds of w elements and shifts each fold cyclically by a random
    offset. So elements of the same fold never share a sum, and elements of different
    folds share one with probability 1/w. Each x_l therefore adds a variance of
    x_l^2 / w in each row to at most (F - 1) w others, and the mean over the rows has
    E|x - mean|^2 <= v |x|^2 with v = (F - 1) / r.

    - "mean": the mean of the r numbers. It is unbiased and linear, so the tables of
      workers with the same key can be added (`aligned`).
    - "damped": the mean / (1 + v), with E|x - C(x)|^2 <= v / (1 + v) |x|^2. It is
      biased, a contraction and aligned, which suits a memory.
    - "median": unbiased, because the random signs make the distribution of each number
      symmetric. It is not linear, and a few large elements do not disturb it.

    A tensor with r w >= n is sent as it is.

    Args:
      ratio: numbers sent for each element, in (0, 1): w = round(ratio n / rows).
      rows: r, up to 32. More than one row improves the median only.
      estimate: "damped", "mean" or "median".
      keep: fraction of estimates that is KEPT, the largest: biased, without a bound.

    Example:
      >>> c = count_sketch(ratio=0.25)
      >>> payload, _ = c.compress(jnp.arange(16.0), (), jax.random.key(0))
      >>> payload.values.shape
      (1, 4)

    References:
      Charikar, Chen and Farach-Colton, Finding frequent items in data streams, ICALP
      2002. Rothchild et al., FetchSGD: Communication-Efficient Federated Learning with
      Sketching, arXiv:2007.07682, 2020.
    """
    if estimate == "median" and rows < 3:
        raise SpecError(f"estimate 'median' needs rows of at least 3, not {rows}")
    unbiased = estimate != "damped" and keep is None

    def compress(x: Array, state: State, key: Array) -> tuple[Payload, State]:
        folds = _folds(x.size, ratio, rows)
        if folds is None:
            return Dense(x), state
        seed, flat = prng.seed_of(key), widen(x.reshape(-1))
        return Seeded(_tables(flat, seed, folds).astype(x.dtype), seed), state

    def decompress(payload: Seeded | Dense, spec: Spec) -> Array:
        if isinstance(payload, Dense):
            return payload.values
        folds = _folds(spec.size, ratio, rows)
        assert folds is not None
        tables = payload.values.astype(wide_spec(spec).dtype)
        # Clipping a biased estimate at the largest number makes its error smaller.
        dtypes = () if unbiased else (tables.dtype, spec.dtype)
        limit = min((float(jnp.finfo(t).max) for t in dtypes), default=math.inf)
        flat = _estimates(tables, payload.seed, folds, estimate, limit)
        return flat if keep is None else _only_largest(flat, kept(flat.size, keep))

    def contraction(spec: Spec) -> float | None:
        folds = _folds(spec.size, ratio, rows)
        if folds is None:
            return 1.0
        return 1 / (1 + folds.variance) if estimate == "damped" and not keep else None

    return compressor(
        name,
        compress,
        decompress,
        contraction=contraction,
        unbiased=unbiased,
        aligned=estimate != "median" and keep is None,
    )


def _only_largest(flat: Array, count: int) -> Array:
    places = selection.largest(flat, count).places
    values = flat.at[places].get(mode="fill", fill_value=0)
    return jnp.zeros_like(flat).at[places].set(values, mode="drop")


class _Folds(NamedTuple):
    """How a vector is divided into folds, which follows from its size."""

    size: int
    rows: int
    width: int  # w
    number: int  # F

    @property
    def variance(self) -> float:
        """v, the bound of E|x - mean|^2 / |x|^2."""
        return (self.number - 1) / self.rows

    @property
    def unit(self) -> float:
        """A power of two of at least F: sums of F elements / unit stay in range."""
        return 2.0 ** math.ceil(math.log2(self.number))


def _folds(size: int, ratio: float, rows: int) -> _Folds | None:
    """The folds of a vector; None if the table is not smaller than the vector."""
    width = max(1, round(ratio * size / rows))
    if rows * width >= size:
        return None
    return _Folds(size, rows, width, -(-size // width))


def _draws(seed: Array, folds: _Folds) -> tuple[Array, Array]:
    """A seed of signs for each fold [F, 2], and shifts for each fold and row [F, r]."""
    per_fold = 2 + 2 * folds.rows
    draws = prng.words(seed, folds.number * per_fold).reshape(folds.number, per_fold)
    # The remainder of one word would favour small shifts by w / 2^32; the sum of two
    # remainders favours them by the square of this.
    width = np.uint32(folds.width)
    shifts = (draws[:, 2::2] % width + draws[:, 3::2] % width) % width
    return draws[:, :2], shifts.astype(jnp.int32)


def _signed(values: Array, words: Array, row: int) -> Array:
    negative = (words >> np.uint32(row)) & np.uint32(1)
    return jnp.where(negative == 1, -values, values)


def _tables(flat: Array, seed: Array, folds: _Folds) -> Array:
    """The sums of all rows [r, w], in units of `folds.unit`."""
    seeds, shifts = _draws(seed, folds)
    width = folds.width
    last = folds.size - width
    places = jax.lax.iota(jnp.int32, width)

    def add(fold: Array, tables: tuple[Array, ...]) -> tuple[Array, ...]:
        # The last fold begins early enough to have w elements; those that belong to
        # the fold before it become zero.
        start = jnp.minimum(fold * width, last)
        piece = jax.lax.dynamic_slice(flat, (start,), (width,)) / folds.unit
        piece = jnp.where(places >= fold * width - start, piece, 0)
        words = prng.words(seeds[fold], width)
        # The barrier lets all rows share these arrays.
        piece, words = jax.lax.optimization_barrier((piece, words))

        def one(row: int, table: Array) -> Array:
            at = (shifts[fold, row],)
            there = jax.lax.dynamic_slice(table, at, (width,))
            return jax.lax.dynamic_update_slice(
                table, there + _signed(piece, words, row), at
            )

        return tuple(one(row, table) for row, table in enumerate(tables))

    # The tables are twice as wide, so that a shifted fold need not wrap around.
    zeros = tuple(jnp.zeros(2 * width, flat.dtype) for _ in range(folds.rows))
    start = vary_like(zeros, (flat, seeds))
    tables = jnp.stack(jax.lax.fori_loop(0, folds.number, add, start))
    return tables[:, :width] + tables[:, width:]


def _estimates(
    tables: Array, seed: Array, folds: _Folds, estimate: str, limit: float
) -> Array:
    """The vector [n] of estimates. Those that are finite are clipped to `limit`."""
    seeds, shifts = _draws(seed, folds)
    width = folds.width
    twice = jnp.concatenate([tables, tables], axis=1)
    average = _median if estimate == "median" else _mean
    factor = folds.unit / (1 + folds.variance) if estimate == "damped" else folds.unit

    def write(i: Array, flat: Array) -> Array:
        # From the last fold to the first: the last one may begin with elements of the
        # fold before it, which then overwrites them.
        fold = folds.number - 1 - i
        words = prng.words(seeds[fold], width)
        numbers = []
        for row in range(folds.rows):
            at = (np.int32(row), shifts[fold, row])
            there = jax.lax.dynamic_slice(twice, at, (1, width)).reshape(-1)
            numbers.append(_signed(there, words, row))
        middle = average(numbers)
        bounded = jnp.clip(middle, -limit / factor, limit / factor)
        result = jnp.where(jnp.isinf(middle), middle, bounded) * factor
        start = jnp.minimum(fold * width, folds.size - width)
        return jax.lax.dynamic_update_slice(flat, result, (start,))

    start = vary_like(jnp.zeros(folds.size, tables.dtype), (tables, seed))
    return jax.lax.fori_loop(0, folds.number, write, start)


def _mean(rows: list[Array]) -> Array:
    parts = [row * (1 / len(rows)) for row in rows]  # their sum could overflow
    return sum(parts[1:], parts[0])


def _median(rows: list[Array]) -> Array:
    """The median of each element, by odd-even transposition sort; a NaN stays."""
    rows = list(rows)
    for round_ in range(len(rows)):
        for i in range(round_ % 2, len(rows) - 1, 2):
            low, high = jnp.minimum(*rows[i : i + 2]), jnp.maximum(*rows[i : i + 2])
            rows[i : i + 2] = low, high
    middle = len(rows) // 2
    if len(rows) % 2:
        return rows[middle]
    return rows[middle - 1] / 2 + rows[middle] / 2
