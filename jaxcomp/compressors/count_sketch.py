"""Count sketch: random signed sums of a vector, linear in it."""

import math
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise, selection
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.payloads import Dense, Seeded
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep, kept
from jaxcomp.specs import Range, SpecError, method
from jaxcomp.trees import spec_of, vary_like, wide_spec

__all__ = ["MAX_ROWS", "count_sketch"]

MAX_ROWS = 32  # a row takes its signs from one bit of a word
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

    T_j[h_j(i)] += s_j(i) x_i, and x_i is estimated from the r numbers
    s_j(i) T_j[h_j(i)], each right in the mean. The hash is made of folds: x is cut into
    F = ceil(n / w) pieces of w elements, and h_j shifts each piece cyclically by an
    offset of its own. So elements of one fold never meet and others meet with chance
    1/w: x_l disturbs at most (F - 1) w others, with variance x_l^2 / w each in a row,
    and E|x - mean|^2 <= (F - 1) / r |x|^2.

    - "mean" of the r numbers: unbiased, linear, so tables of workers that share a key
      can be summed (`aligned`).
    - "damped": the mean / (1 + v), v = (F - 1) / r. E|x - C(x)|^2 <= v / (1 + v) |x|^2.
      Biased, aligned: what a memory wants.
    - "median": unbiased as the signs make each number's law symmetric. Not linear; a
      few large elements do not disturb it.

    Where r w >= n the tensor goes as it is.

    Args:
      ratio: numbers sent for each element, in (0, 1): w = round(ratio n / rows).
      rows: r, up to 32. More than one gain nothing but for the median.
      estimate: "damped", "mean" or "median".
      keep: fraction of the elements of which the estimate is KEPT, the largest; the
        others become zero. That is biased, and no bound holds. None keeps all.

    Example:
        >>> c = count_sketch(ratio=0.25)
        >>> payload, _ = c.compress(jnp.arange(16.0), (), jax.random.key(0))
        >>> payload.values.shape, payload.seed.shape
        ((1, 4), (2,))

    References:
      Charikar, Chen and Farach-Colton, Finding frequent items in data streams, ICALP
      2002. Rothchild et al., FetchSGD: Communication-Efficient Federated Learning with
      Sketching, arXiv:2007.07682, 2020.
    """
    if estimate == "median" and rows < 3:
        raise SpecError(f"estimate 'median' needs rows of at least 3, not {rows}")
    unbiased = estimate != "damped" and keep is None

    def compress(x: Array, state: State, key: Array) -> tuple[Seeded | Dense, State]:
        plan = _plan(x.size, ratio, rows)
        if plan is None:
            return Dense(x), state
        seed = noise.seed_of(key)
        flat = x.reshape(-1).astype(wide_spec(spec_of(x)).dtype)
        return Seeded(_tables(flat, seed, plan).astype(x.dtype), seed), state

    def decompress(payload: Seeded | Dense, spec: Spec) -> Array:
        if isinstance(payload, Dense):
            return payload.values.astype(spec.dtype)
        plan = _plan(math.prod(spec.shape), ratio, rows)
        assert plan is not None
        tables = payload.values.astype(wide_spec(spec).dtype)
        # x is no larger than its dtype's largest number. Where the estimate may be
        # biased, cutting it there brings it but nearer.
        largest = min(float(jnp.finfo(t).max) for t in (tables.dtype, spec.dtype))
        limit = math.inf if unbiased else largest
        flat = _estimates(tables, payload.seed, plan, estimate, limit)
        if keep is not None:
            places = selection.largest(flat, kept(flat.size, keep)).places
            values = flat.at[places].get(mode="fill", fill_value=0)
            flat = jnp.zeros_like(flat).at[places].set(values, mode="drop")
        return flat.reshape(spec.shape).astype(spec.dtype)

    def ideal_bits(spec: Spec) -> float:
        size = math.prod(spec.shape)
        plan = _plan(size, ratio, rows)
        width = jnp.dtype(spec.dtype).itemsize * 8
        return float(size * width if plan is None else rows * plan.width * width + 64)

    def contraction(spec: Spec) -> float | None:
        plan = _plan(math.prod(spec.shape), ratio, rows)
        if plan is None:
            return 1.0
        return 1 / (1 + plan.variance) if estimate == "damped" and not keep else None

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=unbiased,
        aligned=estimate != "median" and keep is None,
    )


class _Plan(NamedTuple):
    """The folds of a vector, known from its size."""

    size: int
    rows: int
    width: int  # w
    folds: int

    @property
    def variance(self) -> float:
        """The bound of E|x - mean|^2 / |x|^2."""
        return (self.folds - 1) / self.rows

    @property
    def unit(self) -> float:
        """A power of two above the folds: in its units no sum exceeds the largest x."""
        return 2.0 ** math.ceil(math.log2(self.folds))


def _plan(size: int, ratio: float, rows: int) -> _Plan | None:
    """None where the table is no smaller than the vector."""
    width = max(1, round(ratio * size / rows))
    if rows * width >= size:
        return None
    return _Plan(size, rows, width, -(-size // width))


def _draws(seed: Array, plan: _Plan) -> tuple[Array, Array]:
    """A seed of signs for each fold [F, 2], and shifts for each fold and row [F, r]."""
    per_fold = 2 + 2 * plan.rows
    draws = noise.words(seed, plan.folds * per_fold).reshape(plan.folds, per_fold)
    # The remainder of one word favours small shifts by w / 2^32, the sum of two by the
    # square of it.
    width = np.uint32(plan.width)
    shifts = (draws[:, 2::2] % width + draws[:, 3::2] % width) % width
    return draws[:, :2], shifts.astype(jnp.int32)


def _signed(values: Array, words: Array, row: int) -> Array:
    negative = (words >> np.uint32(row)) & np.uint32(1)
    return jnp.where(negative == 1, -values, values)


def _tables(flat: Array, seed: Array, plan: _Plan) -> Array:
    """All rows [r, w], in units of `plan.unit`."""
    seeds, shifts = _draws(seed, plan)
    width = plan.width
    last = plan.size - width
    places = jax.lax.iota(jnp.int32, width)

    def add(fold: Array, tables: tuple[Array, ...]) -> tuple[Array, ...]:
        # The last fold starts early enough to be whole: its head belongs to another.
        start = jnp.minimum(fold * width, last)
        piece = jax.lax.dynamic_slice(flat, (start,), (width,)) / plan.unit
        piece = jnp.where(places >= fold * width - start, piece, 0)
        words = noise.words(seeds[fold], width)
        # Once for all rows.
        piece, words = jax.lax.optimization_barrier((piece, words))

        def one(row: int, table: Array) -> Array:
            at = (shifts[fold, row],)
            there = jax.lax.dynamic_slice(table, at, (width,))
            return jax.lax.dynamic_update_slice(
                table, there + _signed(piece, words, row), at
            )

        return tuple(one(row, table) for row, table in enumerate(tables))

    # Twice as wide, so that a shifted fold does not wrap around.
    zeros = tuple(jnp.zeros(2 * width, flat.dtype) for _ in range(plan.rows))
    start = vary_like(zeros, (flat, seeds))
    tables = jnp.stack(jax.lax.fori_loop(0, plan.folds, add, start))
    return tables[:, :width] + tables[:, width:]


def _estimates(
    tables: Array, seed: Array, plan: _Plan, estimate: str, limit: float
) -> Array:
    """The vector [n] of estimates, of which finite ones are at most `limit`."""
    seeds, shifts = _draws(seed, plan)
    width = plan.width
    twice = jnp.concatenate([tables, tables], axis=1)
    average = _median if estimate == "median" else _mean
    factor = plan.unit / (1 + plan.variance) if estimate == "damped" else plan.unit

    def write(i: Array, flat: Array) -> Array:
        # From the last to the first, which overwrites the last one's head.
        fold = plan.folds - 1 - i
        words = noise.words(seeds[fold], width)
        numbers = []
        for row in range(plan.rows):
            at = (np.int32(row), shifts[fold, row])
            there = jax.lax.dynamic_slice(twice, at, (1, width)).reshape(-1)
            numbers.append(_signed(there, words, row))
        middle = average(numbers)
        bounded = jnp.clip(middle, -limit / factor, limit / factor)
        result = jnp.where(jnp.isinf(middle), middle, bounded) * factor
        start = jnp.minimum(fold * width, plan.size - width)
        return jax.lax.dynamic_update_slice(flat, result, (start,))

    start = vary_like(jnp.zeros(plan.size, tables.dtype), (tables, seed))
    return jax.lax.fori_loop(0, plan.folds, write, start)


def _mean(rows: list[Array]) -> Array:
    parts = [row * (1 / len(rows)) for row in rows]  # the sum may leave the range
    return sum(parts[1:], parts[0])


def _median(rows: list[Array]) -> Array:
    """Element by element, by exchanges of neighbours; NaN spreads."""
    rows = list(rows)
    for round_ in range(len(rows)):
        for i in range(round_ % 2, len(rows) - 1, 2):
            low, high = jnp.minimum(*rows[i : i + 2]), jnp.maximum(*rows[i : i + 2])
            rows[i : i + 2] = low, high
    middle = len(rows) // 2
    if len(rows) % 2:
        return rows[middle]
    return rows[middle - 1] / 2 + rows[middle] / 2
