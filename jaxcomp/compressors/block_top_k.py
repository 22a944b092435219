"""Block top-k: the largest elements of every block, found in one pass."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.packing import bit_width, pack, unpack
from jaxcomp.compressors import _sparse
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep
from jaxcomp.selection import magnitude_bits
from jaxcomp.specs import Count, method
from jaxcomp.trees import vary_like

__all__ = ["Blocks", "block_top_k"]

# Columns that are compared at once, so that few or short blocks fill them too.
_LANES = 1 << 14


class Blocks(NamedTuple):
    """As many elements of each block, and where in their block they stand."""

    values: Array  # [per_block * blocks]: the first of all blocks, then the second, ...
    rows: Array  # uint8: their places within the blocks, packed


class _Shape(NamedTuple):
    """Element i is in row i // blocks of block i % blocks; the last row is not full."""

    blocks: int
    rows: int
    chosen: int  # in each block


@method("keep")
def block_top_k(name: str, keep: Keep = 0.01, per_block: Count = 1) -> Compressor:
    """Keep the `per_block` largest of every block of round(per_block / keep) elements.

    C(x)_i = x_i where |x_i| is among the p largest of its block, else 0. With blocks of
    at most m elements |x - C(x)|^2 <= (1 - p/m) |x|^2, block by block. Block j of the B
    = ceil(n / m) blocks is x_j, x_(j+B), x_(j+2B), ..., so that neighbours, which are
    often large together, are in different blocks. One pass for each of the p instead
    of a search for a threshold, and a place costs ceil(log2(m)) bits. Biased: use a
    memory. A NaN counts as largest, so it is sent and seen.

    Args:
      keep: fraction of the elements KEPT, in (0, 1].
      per_block: p. More are nearer to `top_k`, and slower.

    Example:
        >>> c = block_top_k(keep=0.5)
        >>> x = jnp.array([1.0, -4.0, 2.0, 5.0])  # blocks: [1, 2] and [-4, 5]
        >>> payload, _ = c.compress(x, (), None)
        >>> c.decompress(payload, x)
        Array([0., 0., 2., 5.], dtype=float32)

    References:
      Key et al., Approximate Top-k for Increased Parallelism, arXiv:2412.04358, 2024.
      Chern et al., TPU-KNN: K Nearest Neighbor Search at Peak FLOP/s, arXiv:2206.14286,
      2022.
    """
    block = max(per_block, round(per_block / keep))

    def shape(size: int) -> _Shape:
        blocks = -(-size // block)
        rows = -(-size // blocks)
        return _Shape(blocks, rows, min(per_block, rows))

    def compress(x: Array, state: State, key: Array) -> tuple[Blocks, State]:
        flat = x.reshape(-1)
        form = shape(flat.size)
        rows = _largest_rows(flat, form)
        values = flat.at[_places(rows, form)].get(mode="fill", fill_value=0)
        return Blocks(values, pack(rows, bit_width(form.rows))), state

    def accumulate(total: Array, payload: Blocks) -> Array:
        form = shape(total.size)
        count = payload.values.size
        places = _places(unpack(payload.rows, bit_width(form.rows), count), form)
        values = payload.values.astype(total.dtype)
        flat = total.reshape(-1)
        added = flat.at[places].add(values, mode="drop", unique_indices=True)
        return added.reshape(total.shape)

    def decompress(payload: Blocks, spec: Spec) -> Array:
        return accumulate(jnp.zeros(spec.shape, spec.dtype), payload)

    def ideal_bits(spec: Spec) -> float:
        size = math.prod(spec.shape)
        form = shape(size)
        value = jnp.dtype(spec.dtype).itemsize * 8
        full = size - form.blocks * (form.rows - 1)  # blocks with an element more
        total = 0.0
        for blocks, rows in ((full, form.rows), (form.blocks - full, form.rows - 1)):
            chosen = min(form.chosen, rows)
            total += blocks * (chosen * value + _sparse.subset_bits(rows, chosen))
        return total

    def contraction(spec: Spec) -> float:
        form = shape(math.prod(spec.shape))
        return form.chosen / form.rows

    def support(spec: Spec) -> int:
        form = shape(math.prod(spec.shape))
        return min(math.prod(spec.shape), form.chosen * form.blocks)

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=False,
        support=support,
    )


def _places(rows: Array, form: _Shape) -> Array:
    """Places in the vector. Where a block has one element too few: beyond its end."""
    columns = jax.lax.iota(jnp.uint32, form.blocks)[None, :]
    rows = rows.reshape(form.chosen, form.blocks)
    return (rows * np.uint32(form.blocks) + columns).reshape(-1)


class _Best(NamedTuple):
    bits: Array  # magnitude bits + 1; 0 where there is none
    rows: Array  # uint32


def _largest_rows(x: Array, form: _Shape) -> Array:
    """Rows of the largest elements, [chosen * blocks], the largest of each first."""
    shape = (form.chosen, form.blocks)

    def step(i: Array, found: tuple[_Best, Array]) -> tuple[_Best, Array]:
        last, rows = found
        best = _best_below(x, form, last)
        return best, rows.at[i].set(jnp.minimum(best.rows, np.uint32(form.rows - 1)))

    highest = jnp.full(form.blocks, jnp.iinfo(magnitude_bits(x).dtype).max)
    highest = highest.astype(magnitude_bits(x).dtype)
    start = _Best(highest, jnp.zeros(form.blocks, jnp.uint32))
    found = vary_like((start, jnp.zeros(shape, jnp.uint32)), x)
    return jax.lax.fori_loop(0, form.chosen, step, found)[1].reshape(-1)


def _best_below(x: Array, form: _Shape, last: _Best) -> _Best:
    """The largest of each block that comes after `last`; of equals the first ones.

    A lane is a block or every g-th row of one. All lanes are compared at once, row by
    row: contiguous, and nothing of the vector's size is stored.
    """
    folds = max(1, min(form.rows, _LANES // form.blocks))
    lanes = folds * form.blocks
    fold = jax.lax.iota(jnp.uint32, lanes) // np.uint32(form.blocks)
    last = jax.tree.map(lambda a: jnp.tile(a, folds), last)

    def better(best: _Best, part: Array, i: Array) -> _Best:
        bits = magnitude_bits(part) + np.array(1, best.bits.dtype)
        rows = i.astype(jnp.uint32) * np.uint32(folds) + fold
        if form.chosen > 1:
            after = (bits == last.bits) & (rows > last.rows) | (bits < last.bits)
            bits = jnp.where(after, bits, jnp.zeros_like(bits))
        wins = bits > best.bits
        return _Best(
            *jax.tree.map(lambda a, b: jnp.where(wins, a, b), (bits, rows), tuple(best))
        )

    def step(i: Array, best: _Best) -> _Best:
        return better(best, jax.lax.dynamic_slice(x, (i * lanes,), (lanes,)), i)

    none = _Best(jnp.zeros_like(last.bits), jnp.zeros_like(last.rows))
    best = vary_like(none, x)
    full, rest = divmod(x.size, lanes)
    if full:
        best = jax.lax.fori_loop(0, full, step, best, unroll=4)
    if rest:
        tail = jnp.pad(x[x.size - rest :], (0, lanes - rest))
        best = better(best, tail, jnp.uint32(full))
    bits, rows = (a.reshape(folds, form.blocks) for a in best)
    most = jnp.max(bits, axis=0)
    rows = jnp.where(bits == most[None], rows, np.uint32(0xFFFFFFFF))
    return _Best(most, jnp.min(rows, axis=0))
