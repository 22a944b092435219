"""Many tensors as segments of one matrix, and compressors that take them at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import buckets
from jaxcomp.compressors._kit.compiled import add_at, clear_at, with_spec
from jaxcomp.compressors._kit.magnitudes import magnitude_bits
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import (
    bit_width,
    digits_of,
    pack_symbols,
    unpack_symbols,
)
from jaxcomp.core.trees import spec_of, vary_like, wide_spec
from jaxcomp.core.types import (
    Accumulate,
    Array,
    Compressor,
    Figure,
    Payload,
    Spec,
    State,
)

# Of rows. It is the same for all tensors, because sums depend on it in their last bits.
_WIDTH = 512
_TOGETHER = 128  # rows whose numbers are reduced in one step


class Segments(NamedTuple):
    """Which rows belong to which tensor."""

    sizes: tuple[int, ...]  # elements of each tensor, all above 0
    width: int  # of a row

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of each tensor."""
        return tuple(-(-size // self.width) for size in self.sizes)

    @property
    def rows(self) -> int:
        """Rows of all tensors."""
        return sum(self.heights)

    @property
    def starts(self) -> np.ndarray:
        """First row of each tensor."""
        return _before(self.heights)

    @property
    def owners(self) -> np.ndarray:
        """The tensor that each row belongs to."""
        tensors = np.arange(len(self.sizes), dtype=np.int32)
        return np.repeat(tensors, self.heights)

    @property
    def padding_before(self) -> np.ndarray:
        """For each row, how many elements of padding lie in the rows before it."""
        offsets = self.starts * np.uint32(self.width) - _before(self.sizes)
        return offsets[self.owners]

    @property
    def places_in_tensor(self) -> Array:
        """[rows, width]: for each element its place in its tensor."""
        rows = np.arange(self.rows, dtype=np.uint32) - self.starts[self.owners]
        first = (rows * np.uint32(self.width))[:, None]
        return jnp.asarray(first) + jax.lax.iota(jnp.uint32, self.width)[None, :]

    def in_rows(self, places: Array) -> Array:
        """Places in the vector that joins the tensors -> places in the flat matrix.

        The size of the vector, and what is above it, is beyond the end of the matrix.

        Example:
          >>> Segments((3, 2), 4).in_rows(jnp.array([2, 3, 5], jnp.uint32))
          Array([2, 4, 8], dtype=uint32)
        """
        ends = np.cumsum(self.sizes).astype(np.uint32)
        starts = self.starts * np.uint32(self.width) - _before(self.sizes)
        absent = np.uint32(self.rows * self.width)
        # Without a loop, which a GPU would start anew in each round.
        owner = jnp.searchsorted(ends, places, side="right", method="scan_unrolled")
        shift = jnp.asarray(starts).at[owner].get(mode="fill", fill_value=0)
        return jnp.where(places < ends[-1], places + shift, absent)

    def spread(self, values: Array | np.ndarray) -> Array:
        """[tensors] -> [rows, 1]: for each row the value of its tensor."""
        return jnp.asarray(values)[self.owners][:, None]

    def sums(self, values: Array) -> Array:
        """[rows] -> [tensors]: their sums, in an order that the tensor's size fixes."""
        return self._reduced(values, jnp.sum)

    def maxima(self, values: Array) -> Array:
        """[rows] numbers of at least 0 -> [tensors]: their maxima."""
        return self._reduced(values, jnp.max)

    def _reduced(self, values: Array, reduce: Callable[..., Array]) -> Array:
        """A few rows of each tensor at a time, until it has one number."""
        heights = self.heights
        while max(heights) > 1:
            groups = Segments(heights, _TOGETHER)
            row = groups.places_in_tensor
            is_own = row < np.array(heights, np.uint32)[groups.owners][:, None]
            place = row + _before(heights)[groups.owners][:, None]
            place = jnp.where(is_own, place, np.uint32(values.size))
            own = values.at[place].get(mode="fill", fill_value=0)
            values = reduce(own, axis=1).astype(values.dtype)
            heights = groups.heights
        return values


def segments_of(sizes: Sequence[int], width: int | None = None) -> Segments:
    """Rows for tensors of these sizes.

    Args:
      sizes: elements of each tensor.
      width: of the rows, where a method asks for one.

    Example:
      >>> segments_of([1000, 70]).heights
      (2, 1)
    """
    return Segments(tuple(sizes), width or _WIDTH)


def to_rows(arrays: Sequence[Array], segments: Segments) -> Array:
    """Arrays of one dtype as the rows of a matrix; zeros complete their last rows.

    Example:
      >>> to_rows([jnp.ones(2), jnp.ones((1, 1))], Segments((2, 1), 2)).tolist()
      [[1.0, 1.0], [1.0, 0.0]]
    """
    parts = []
    for x, height in zip(arrays, segments.heights, strict=True):
        parts.append(x.reshape(-1))
        absent = height * segments.width - x.size
        if absent:
            parts.append(jnp.zeros(absent, x.dtype))
    return jnp.concatenate(parts).reshape(segments.rows, segments.width)


def from_rows(rows: Array, segments: Segments) -> tuple[Array, ...]:
    """The inverse of `to_rows`, as one vector for each tensor.

    Example:
      >>> from_rows(jnp.array([[1, 2], [3, 0]]), Segments((2, 1), 2))
      (Array([1, 2], dtype=int32), Array([3], dtype=int32))
    """
    flat, starts = rows.reshape(-1), segments.starts.astype(int) * segments.width
    pairs = zip(starts.tolist(), segments.sizes, strict=True)
    return tuple(flat[start : start + size] for start, size in pairs)


def join(arrays: Sequence[Array]) -> Array:
    """Arrays of one dtype as one vector without padding."""
    return jnp.concatenate([x.reshape(-1) for x in arrays])


def cut(flat: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
    """The inverse of `join`, as one vector for each size.

    Example:
      >>> cut(jnp.array([1, 2, 3]), [2, 1])
      (Array([1, 2], dtype=int32), Array([3], dtype=int32))
    """
    starts = _before(sizes).tolist()
    return tuple(flat[a : a + n] for a, n in zip(starts, sizes, strict=True))


def _before(counts: Sequence[int]) -> np.ndarray:
    """The sum of all counts before each one."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.uint32)


def of_rows(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    decompress: Callable[[Payload, Segments, Any], Array],
    width: int | None = None,
) -> Compressor:
    """A method whose payload has every element, for a tuple of arrays of one dtype.

    Args:
      one: the same method for one array. It has no state.
      compress: (rows, segments, keys) -> payload; a key for each tensor.
      decompress: (payload, segments, dtype) -> rows, in any float type; they are cast
        to this dtype.
      width: of the rows; None leaves it to `segments_of`.
    """

    def add(total: Array, payload: Payload, segments: Segments) -> Array:
        return total + decode(payload, segments, total.dtype)

    def accumulate(total: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        added = made.decompress(payload, spec_of(tuple(total)))
        return tuple(map(jnp.add, total, added))

    def zeros(segments: Segments, dtype: Any) -> Array:
        return jnp.zeros((segments.rows, segments.width), dtype)

    def decode(payload: Payload, segments: Segments, dtype: Any) -> Array:
        return decompress(payload, segments, dtype).astype(dtype)

    def whole(payload: Payload, segments: Segments) -> Payload:
        return payload

    forms = decode, whole, add, zeros, from_rows
    made = _of(one, compress, accumulate, *forms, width)
    return made


def of_vector(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    read: Callable[[Payload, int], tuple[Array, Array]],
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A method that sends some elements, for a tuple of arrays of one dtype.

    Args:
      one: the same method for one array. It has no state.
      compress: (rows, segments, keys) -> payload; a key for each tensor.
      read: (payload, size) -> places and values of what was sent, in the vector of
        this size that joins all arrays without padding. Places ascend; those beyond
        the end are left out.
      figures: as in `Compressor`; their spec is the tuple of specs.
    """

    def found(payload: Payload, segments: Segments) -> tuple[Array, Array]:
        return read(payload, sum(segments.sizes))

    def add_ascending(total: Array, places: Array, values: Array) -> Array:
        return add_at(total, places, values, indices_are_sorted=True)

    def add(total: Array, found: tuple[Array, Array], segments: Segments) -> Array:
        return add_ascending(total, *found)

    def zeros(segments: Segments, dtype: Any) -> Array:
        return jnp.zeros(sum(segments.sizes), dtype)

    def decode(payload: Payload, segments: Segments, dtype: Any) -> Array:
        return add(zeros(segments, dtype), found(payload, segments), segments)

    def parted(flat: Array, segments: Segments) -> tuple[Array, ...]:
        return cut(flat, segments.sizes)

    def in_rows(
        arrays: Sequence[Array],
        payload: Payload,
        change: Callable[[Array, Array, Array], Array],
    ) -> tuple[Array, ...]:
        """Arrays changed at the places of a payload; in the rows of `compress`."""
        segments = segments_of([x.size for x in arrays])
        places, values = found(payload, segments)
        rows = to_rows(arrays, segments)
        flat = change(rows.reshape(-1), segments.in_rows(places), values)
        changed = from_rows(flat.reshape(rows.shape), segments)
        pairs = zip(changed, arrays, strict=True)
        return tuple(part.reshape(x.shape) for part, x in pairs)

    def accumulate(total: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        return in_rows(total, payload, add_ascending)

    def clear(arrays: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        return in_rows(arrays, payload, clear_at)

    made = _of(one, compress, accumulate, decode, found, add, zeros, parted)
    return made._replace(figures=figures, clear=clear)


def _of(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    accumulate: Accumulate,
    decode: Callable[[Payload, Segments, Any], Array],
    read: Callable[[Payload, Segments], Any],
    add: Callable[[Array, Any, Segments], Array],
    zeros: Callable[[Segments, Any], Array],
    parted: Callable[[Array, Segments], tuple[Array, ...]],
    width: int | None = None,
) -> Compressor:
    """A compressor of tuples.

    `read` makes of a payload what `add` adds to a sum: something small, because that of
    all payloads is held at once.
    """

    def layout(arrays: Any) -> Segments:
        return segments_of([x.size for x in arrays], width)

    def shaped(flat: Array, segments: Segments, specs: Spec) -> tuple[Array, ...]:
        pairs = zip(parted(flat, segments), specs, strict=True)
        return tuple(x.reshape(s.shape) for x, s in pairs)

    def compress_all(
        arrays: Sequence[Array], state: State, keys: Array
    ) -> tuple[Payload, State]:
        segments = layout(arrays)
        return compress(to_rows(arrays, segments), segments, keys), state

    def decompress(payload: Payload, specs: Spec) -> tuple[Array, ...]:
        segments = layout(specs)
        return shaped(decode(payload, segments, specs[0].dtype), segments, specs)

    def decompress_sum(payloads: Payload, specs: Spec) -> tuple[Array, ...]:
        segments, wide = layout(specs), wide_spec(specs)
        contents = jax.vmap(lambda payload: read(payload, segments))(payloads)

        # One after the other, for the reason given in `_compiled.py`.
        def body(i: Array, total: Array) -> Array:
            return add(total, jax.tree.map(lambda leaf: leaf[i], contents), segments)

        count = jax.tree.leaves(payloads)[0].shape[0]
        start = vary_like(zeros(segments, wide[0].dtype), payloads)
        return shaped(jax.lax.fori_loop(0, count, body, start), segments, wide)

    return one._replace(
        init=lambda specs: tuple(one.init(spec) for spec in specs),
        compress=jax.jit(compress_all),
        decompress=with_spec(decompress),
        accumulate=accumulate,
        decompress_sum=with_spec(decompress_sum),
        ideal_bits=lambda specs: sum((one.ideal_bits(s) for s in specs), 0.0),
        contraction=lambda specs: _least([one.contraction(s) for s in specs]),
        support=lambda specs: sum(map(one.support, specs)),
        segmented=None,
    )


def _least(deltas: list[float | None]) -> float | None:
    known = [delta for delta in deltas if delta is not None]
    return min(known) if len(known) == len(deltas) else None


_FEW = 8  # terms that are added in one step


class Shares(NamedTuple):
    """Which rows share a scale: those of a tensor, or none, as each is a bucket.

    Example:
      >>> segments, rows = Segments((2, 1), 1), jnp.array([[1.0], [-3.0], [2.0]])
      >>> Shares(segments, by_tensor=True).peaks(rows)
      Array([3., 2.], dtype=float32)
    """

    segments: Segments
    by_tensor: bool

    def peaks(self, rows: Array) -> Array:
        """Largest magnitude of each share in float32; that of a NaN is the largest."""
        bits = jnp.max(magnitude_bits(rows), axis=1)
        bits = self.segments.maxima(bits) if self.by_tensor else bits
        return jax.lax.bitcast_convert_type(bits, rows.dtype).astype(jnp.float32)

    def norms(self, rows: Array, scales: Array) -> Array:
        """Euclidean norm of each share times its scale, which is positive."""
        scaled = jnp.abs(rows.astype(jnp.float32)) * self.of_rows(scales)[:, None]
        sums = row_sums(jnp.square(scaled))
        return jnp.sqrt(self.segments.sums(sums) if self.by_tensor else sums)

    def counts(self) -> Array:
        """Elements of each share in float32."""
        sizes, width = self.segments.sizes, self.segments.width
        if self.by_tensor:
            return jnp.array(sizes, jnp.float32)
        return jnp.concatenate([buckets.counts(size, width) for size in sizes])

    def of_tensors(self, values: Sequence[float]) -> np.ndarray:
        """[tensors] -> [shares]: for each share the value of its tensor."""
        each = np.array(values, np.float32)
        return each if self.by_tensor else each[self.segments.owners]

    def to_levels(
        self,
        rows: Array,
        scales: Array,
        units: Array,
        levels: int,
        keys: Array | None,
    ) -> Array:
        """[rows, width] symbols; as `_buckets.to_levels`.

        Args:
          rows: of all tensors.
          scales: of the shares.
          units: of the shares.
          levels: the largest multiple of a unit.
          keys: of the tensors, for random rounding; None rounds to the nearest.
        """
        width, by_row = self.segments.width, (self.of_rows(scales), self.of_rows(units))
        draws = None if keys is None else draws_of_each(keys, self.segments)
        flat = buckets.to_levels(rows.reshape(-1), width, *by_row, levels, draws)
        return flat.reshape(rows.shape)

    def from_levels(self, symbols: Array, units: Array, levels: int) -> Array:
        """The inverse of `to_levels` in float32."""
        level = symbols.astype(jnp.float32) - np.float32(levels)
        return level * self.of_rows(units)[:, None]

    def of_rows(self, values: Array) -> Array:
        """[shares] -> [rows]: for each row the value of its share."""
        return self.segments.spread(values)[:, 0] if self.by_tensor else values


def draws_of_each(keys: Array, segments: Segments) -> Array:
    """[rows * width] uniform numbers: each tensor has those of its own key.

    Example:
      >>> keys = jax.random.split(jax.random.key(0))
      >>> draws = draws_of_each(keys, Segments((3, 2), 2)).reshape(-1)
      >>> draws[4:] == noise.uniform(noise.seed_of(keys[1]), (2,))
      Array([ True,  True], dtype=bool)
    """
    return prng.fraction(words_of_each(keys, segments)).reshape(-1)


def words_of_each(keys: Array, segments: Segments) -> Array:
    """[rows, width] random words: each tensor has those of its own key."""
    seeds = jax.vmap(prng.seed_of)(keys)
    a, b = (segments.spread(seeds[:, i]) for i in range(2))
    return prng.words_at(segments.places_in_tensor, a, b)


def row_sums(terms: Array) -> Array:
    """Sum of each row of floats of at least 0, in an order that the width alone fixes.

    Example:
      >>> row_sums(jnp.ones((2, 64)))
      Array([64., 64.], dtype=float32)
    """
    width = terms.shape[1]
    while width % 2 == 0:
        few = math.gcd(_FEW, width)
        width //= few
        # Neighbours go into neighbouring sums, which vectorises: a reduction of XLA's
        # takes seven times as long on a CPU.
        parts = [terms[:, i * width : (i + 1) * width] for i in range(few)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        terms = parts[0]

    def add(a: Array, b: Array) -> Array:
        # The maximum changes no sum. Without it XLA would add in an order of its own,
        # which depends on the number of rows.
        return jnp.maximum(a + b, np.float32(0))

    return jax.lax.reduce(terms, np.float32(0), add, (1,))


def packed(symbols: Array, alphabet: int, segments: Segments) -> Array:
    """The symbols of all tensors in bytes, without those of the padding.

    If rows are whole numbers of bytes, each tensor begins a new byte. Otherwise the
    symbols are joined first, and only the last byte is not full.

    Args:
      symbols: [rows, width] integers in [0, alphabet).
      alphabet: number of different symbols.
      segments: of the rows.

    Example:
      >>> packed(jnp.ones((2, 64), jnp.uint8), 2, Segments((8, 16), 64))
      Array([255, 255, 255], dtype=uint8)
    """
    if _fills_bytes(alphabet, segments):
        flat = pack_symbols(symbols.reshape(-1), alphabet)
        return join(from_rows(flat, _in_bytes(segments, alphabet)))
    return pack_symbols(join(from_rows(symbols, segments)), alphabet)


def unpacked(packed: Array, alphabet: int, segments: Segments) -> Array:
    """The inverse of `packed`, as [rows, width] uint32."""
    if _fills_bytes(alphabet, segments):
        narrow = _in_bytes(segments, alphabet)
        flat = to_rows(cut(packed, narrow.sizes), narrow).reshape(-1)
        size = segments.rows * segments.width
        symbols = unpack_symbols(flat, alphabet, size)
        return symbols.reshape(segments.rows, segments.width)
    symbols = unpack_symbols(packed, alphabet, sum(segments.sizes))
    return to_rows(cut(symbols, segments.sizes), segments)


def _fills_bytes(alphabet: int, segments: Segments) -> bool:
    """Whether the symbols of a row are whole bytes, one after the other."""
    digits = digits_of(alphabet)
    return digits * bit_width(alphabet) == 8 and segments.width % digits == 0


def _in_bytes(segments: Segments, alphabet: int) -> Segments:
    """The same rows, with their width and sizes in bytes of packed symbols."""
    digits = digits_of(alphabet)
    sizes = tuple(-(-size // digits) for size in segments.sizes)
    return Segments(sizes, segments.width // digits)
