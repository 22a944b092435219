"""Block top-k: send the largest elements of every block, found in one pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.making import Keep, compressor, subset_bits, value_bits
from jaxcomp.compressors._kit.segments import add_at
from jaxcomp.compressors._kit.selection import magnitude_bits
from jaxcomp.core.coding.packing import bit_width, pack, unpack
from jaxcomp.core.specs import Count, method
from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array, Compressor, Spec, State

# Elements that are compared at once. Fewer blocks than this get several lanes each.
_LANES = 1 << 14


class Blocks(NamedTuple):
    """The same number of elements of each block, and their places within the block."""

    values: Array  # [per_block * blocks]: the largest of all blocks, the second, ...
    rows: Array  # uint8: their places within the blocks, packed


class _Layout(NamedTuple):
    """Element i is in row i // blocks of block i % blocks.

    The last row may be shorter than the others.
    """

    blocks: int
    rows: int
    chosen: int  # number of elements that are sent of each block


@method("keep")
def block_top_k(name: str, keep: Keep = 0.01, per_block: Count = 1) -> Compressor:
    """Keep the `per_block` largest of every block of round(per_block / keep) elements.

    C(x)_i = x_i if |x_i| is among the p largest magnitudes of its block, else 0. For
    blocks of at most m elements |x - C(x)|^2 <= (1 - p/m) |x|^2, block by block. Block
    j of the B = ceil(n / m) blocks consists of x_j, x_(j+B), x_(j+2B), ..., so
    neighbours, which are often large together, are in different blocks. Each of the p
    elements takes one pass over the vector, and no threshold is searched for. A place
    takes ceil(log2(m)) bits. The method is biased: use it with a memory. A NaN counts
    as the largest magnitude, so it is sent and can be detected.

    Args:
      keep: fraction of the elements that is KEPT, in (0, 1].
      per_block: p. A larger p is nearer to `top_k`, and slower.

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

    def layout_of(size: int) -> _Layout:
        blocks = -(-size // block)
        rows = -(-size // blocks)
        return _Layout(blocks, rows, min(per_block, rows))

    def compress(x: Array, state: State, key: Array) -> tuple[Blocks, State]:
        flat = x.reshape(-1)
        layout = layout_of(flat.size)
        rows = _largest_rows(flat, layout)
        values = flat.at[_places(rows, layout)].get(mode="fill", fill_value=0)
        return Blocks(values, pack(rows, bit_width(layout.rows))), state

    def accumulate(total: Array, payload: Blocks) -> Array:
        layout = layout_of(total.size)
        rows = unpack(payload.rows, bit_width(layout.rows), payload.values.size)
        places = _places(rows, layout)
        return add_at(total, places, payload.values, unique_indices=True)

    def ideal_bits(spec: Spec) -> float:
        layout = layout_of(spec.size)
        long = spec.size - layout.blocks * (layout.rows - 1)  # blocks with a last row
        short = layout.blocks - long
        total = 0.0
        for blocks, rows in ((long, layout.rows), (short, layout.rows - 1)):
            chosen = min(layout.chosen, rows)
            places = subset_bits(rows, chosen)
            total += blocks * (chosen * value_bits(spec) + places)
        return total

    def contraction(spec: Spec) -> float:
        layout = layout_of(spec.size)
        return layout.chosen / layout.rows

    def support(spec: Spec) -> int:
        layout = layout_of(spec.size)
        return min(spec.size, layout.chosen * layout.blocks)

    return compressor(
        name,
        compress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        accumulate=accumulate,
        support=support,
    )


def _places(rows: Array, layout: _Layout) -> Array:
    """Places in the vector; beyond its end for elements that a short block lacks."""
    columns = jax.lax.iota(jnp.uint32, layout.blocks)[None, :]
    rows = rows.reshape(layout.chosen, layout.blocks)
    return (rows * np.uint32(layout.blocks) + columns).reshape(-1)


class _Best(NamedTuple):
    """The best candidate of each block so far."""

    bits: Array  # magnitude bits + 1; 0 if there is no candidate
    rows: Array  # uint32


def _largest_rows(x: Array, layout: _Layout) -> Array:
    """Rows of the largest elements of all blocks, then of the second largest, ..."""
    shape = (layout.chosen, layout.blocks)

    def step(i: Array, found: tuple[_Best, Array]) -> tuple[_Best, Array]:
        last, rows = found
        best = _best_below(x, layout, last)
        return best, rows.at[i].set(jnp.minimum(best.rows, np.uint32(layout.rows - 1)))

    highest = jnp.full(layout.blocks, jnp.iinfo(magnitude_bits(x).dtype).max)
    highest = highest.astype(magnitude_bits(x).dtype)
    start = _Best(highest, jnp.zeros(layout.blocks, jnp.uint32))
    found = vary_like((start, jnp.zeros(shape, jnp.uint32)), x)
    return jax.lax.fori_loop(0, layout.chosen, step, found)[1].reshape(-1)


def _best_below(x: Array, layout: _Layout, last: _Best) -> _Best:
    """The largest element of each block that comes after `last` in descending order.

    Of equal magnitudes the one in front is larger. A lane is a block, or every g-th row
    of a block. All lanes are compared at once, so the vector is read from front to end,
    and no array of its size is stored.
    """
    folds = max(1, min(layout.rows, _LANES // layout.blocks))
    lanes = folds * layout.blocks
    fold = jax.lax.iota(jnp.uint32, lanes) // np.uint32(layout.blocks)
    last = jax.tree.map(lambda a: jnp.tile(a, folds), last)

    def better(best: _Best, part: Array, i: Array) -> _Best:
        bits = magnitude_bits(part) + np.array(1, best.bits.dtype)
        rows = i.astype(jnp.uint32) * np.uint32(folds) + fold
        if layout.chosen > 1:
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
    bits, rows = (a.reshape(folds, layout.blocks) for a in best)
    most = jnp.max(bits, axis=0)
    rows = jnp.where(bits == most[None], rows, np.uint32(0xFFFFFFFF))
    return _Best(most, jnp.min(rows, axis=0))
