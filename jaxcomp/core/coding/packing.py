"""Symbols of 1 to 32 bits packed into bytes, and bits of equal place into planes."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.types import Array


def bit_width(symbols: int) -> int:
    """Bits that tell `symbols` different symbols apart: ceil(log2(symbols)).

    Example:
      >>> [bit_width(n) for n in (2, 3, 15, 16, 255)]
      [1, 2, 4, 4, 8]
    """
    return max(1, (symbols - 1).bit_length())


def pack(symbols: Array, bits: int) -> Array:
    """Pack small unsigned integers into bytes, with `bits` bits for each.

    The bits of a symbol are divided into fields of 8, 4, 2 or 1 bits. The widest field
    has the lowest bits. The result has the first field of all symbols in their order,
    then the second field of all, and so on. No field crosses the border of a byte, so
    shifts are enough to find it, whatever the number of bits.

    Args:
      symbols: integers in [0, 2^bits).
      bits: 1 to 32.

    Returns:
      uint8 of n * bits / 8 bytes, plus less than two bytes for each field.

    Example:
      >>> pack(jnp.array([1, 0, 1]), bits=1)
      Array([160], dtype=uint8)
    """
    symbols = symbols.reshape(-1)
    if symbols.dtype == jnp.bool_:
        symbols = symbols.astype(jnp.uint8)
    fields = []
    size = _whole(symbols.size, _piece(bits))
    for low, width in _fields(bits):
        field = symbols >> np.array(low, symbols.dtype) if low else symbols
        if low + width < bits:
            field &= np.array((1 << width) - 1, symbols.dtype)
        fields.append(_to_bytes(field, 1 << width, size))
    return fields[0] if len(fields) == 1 else jnp.concatenate(fields)


def unpack(packed: Array, bits: int, size: int) -> Array:
    """The inverse of `pack`.

    Args:
      packed: the result of `pack`.
      bits: bits of one symbol.
      size: number of symbols.

    Returns:
      [size] uint32.

    Example:
      >>> unpack(pack(jnp.array([3, 0, 6, 5]), bits=3), bits=3, size=4)
      Array([3, 0, 6, 5], dtype=uint32)
    """
    symbols, start = None, 0
    for low, width in _fields(bits):
        stop = start + -(-_whole(size, _piece(bits)) * width // 8)
        field = _from_bytes(packed[start:stop], 1 << width, size) << np.uint32(low)
        symbols = field if symbols is None else symbols | field
        start = stop
    assert symbols is not None
    return symbols


def pack_symbols(symbols: Array, alphabet: int) -> Array:
    """Pack symbols of an alphabet in the smaller of two ways.

    One way is `pack` with `bit_width(alphabet)` bits for each. The other way takes the
    symbols as digits in base `alphabet` and puts as many as possible into a byte: five
    in base 3, which is 1.6 bits for each, and three in base 5 or 6.

    Args:
      symbols: integers in [0, alphabet).
      alphabet: number of different symbols.

    Example:
      >>> pack_symbols(jnp.array([2, 0, 1, 1, 2]), alphabet=3)
      Array([186], dtype=uint8)
    """
    if _is_denser_by_digits(alphabet):
        size = _whole(symbols.size, _digits(alphabet))
        return _to_bytes(symbols.reshape(-1), alphabet, size)
    return pack(symbols, bit_width(alphabet))


def unpack_symbols(packed: Array, alphabet: int, size: int) -> Array:
    """The inverse of `pack_symbols`, as [size] uint32.

    Example:
      >>> unpack_symbols(jnp.array([186], jnp.uint8), 3, size=5)
      Array([2, 0, 1, 1, 2], dtype=uint32)
    """
    if _is_denser_by_digits(alphabet):
        return _from_bytes(packed, alphabet, size)
    return unpack(packed, bit_width(alphabet), size)


def sign_symbols(x: Array) -> Array:
    """The signs of numbers plus 1, which are symbols of an alphabet of three.

    Example:
      >>> sign_symbols(jnp.array([3.0, -1.0, 0.0]))
      Array([2, 0, 1], dtype=uint8)
    """
    is_positive, is_negative = (x > 0).astype(jnp.uint8), (x < 0).astype(jnp.uint8)
    return np.uint8(1) + is_positive - is_negative


def complete(flat: Array, alphabet: int) -> Array:
    """A long vector, extended by its last element to a length that packs fast.

    On a CPU XLA takes five to ten times as long for a loop over an odd number of
    results. The additional symbols take a byte or two.

    Args:
      flat: [n] the vector that the symbols are computed from.
      alphabet: number of different symbols.

    Returns:
      [m] with m >= n. Its packed symbols take as many bytes as those of n elements.

    Example:
      >>> complete(jnp.zeros(99_999), alphabet=3).size
      100000
    """
    digits = _digits(alphabet) if _is_denser_by_digits(alphabet) else 0
    size = _whole(flat.size, digits or _piece(bit_width(alphabet)))
    if size == flat.size:
        return flat
    # A padded copy of the vector would take more time than all the rest. XLA also makes
    # a copy if the floats are read in two different ways, so their bits are read here.
    unsigned = jnp.dtype(f"uint{8 * flat.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(flat, unsigned)
    bits = bits.at[jax.lax.iota(jnp.uint32, size)].get(mode="clip")
    return jax.lax.bitcast_convert_type(bits, flat.dtype)


def digits_of(alphabet: int) -> int:
    """How many symbols `pack_symbols` puts into a byte, where all fields are alike.

    Example:
      >>> digits_of(2), digits_of(3), digits_of(15)
      (8, 5, 2)
    """
    if _is_denser_by_digits(alphabet):
        return _digits(alphabet)
    return _piece(bit_width(alphabet))


# Up to this size vectors are not extended: it would save microseconds, and the program
# would take longer to compile.
_SHORT = 1 << 16


def _whole(size: int, piece: int) -> int:
    """Number of symbols that are packed: an even number of pieces if they are many."""
    return size if size <= _SHORT else -(-size // (2 * piece)) * 2 * piece


def _piece(bits: int) -> int:
    """Number of symbols whose narrowest fields fill a byte."""
    return 8 // _fields(bits)[-1][1]


def _fields(bits: int) -> list[tuple[int, int]]:
    """(lowest bit, width) of each field of a symbol, the widest field first.

    Example:
      >>> _fields(7), _fields(9)
      ([(0, 4), (4, 2), (6, 1)], [(0, 8), (8, 1)])
    """
    fields, low = [], 0
    while low < bits:
        width = next(w for w in (8, 4, 2, 1) if w <= bits - low)
        fields.append((low, width))
        low += width
    return fields


def _digits(base: int) -> int:
    """Number of digits in a base that fit into a byte."""
    digits = 1
    while base ** (digits + 1) <= 256:
        digits += 1
    return digits


def _is_denser_by_digits(alphabet: int) -> bool:
    return alphabet <= 256 and _digits(alphabet) * bit_width(alphabet) > 8


def _to_bytes(symbols: Array, base: int, size: int) -> Array:
    """Bytes of `size` digits: byte b means the fraction b / 256 with these digits.

    The integer v of d digits is the fraction v / base^d. It is rounded up to a multiple
    of 1/256, which is still below (v + 1) / base^d because base^d <= 256.
    """
    digits = _digits(base)
    size = -(-size // digits) * digits
    if size > symbols.size:
        symbols = jnp.pad(symbols, (0, size - symbols.size))
    if digits == 1:
        return symbols.astype(jnp.uint8)
    rows = symbols.astype(jnp.uint32).reshape(-1, digits)
    weights = np.array([[base**i for i in reversed(range(digits))]], np.uint32)
    numbers = jnp.sum(rows * weights, axis=1, dtype=jnp.uint32)
    total = base**digits
    if total < 256:
        numbers = (numbers * np.uint32(256) + np.uint32(total - 1)) // np.uint32(total)
    return numbers.astype(jnp.uint8)


def _from_bytes(packed: Array, base: int, size: int) -> Array:
    """The inverse of `_to_bytes`; digit i is floor(fraction base^(i + 1)) mod base."""
    packed = packed.astype(jnp.uint32)
    digits = _digits(base)
    if digits == 1:
        return packed[:size]
    powers = np.array([[base**i for i in range(digits)]], np.uint32)
    fractions = (packed[:, None] * powers) & np.uint32(255)
    return ((fractions * np.uint32(base)) >> np.uint32(8)).reshape(-1)[:size]


PLANES = 5  # the symbols of an alphabet of three that fit into a byte: 3^5 <= 256


def pack_planes(symbols: Array) -> Array:
    """Pack symbols 0, 1 and 2, five to a byte.

    Byte b means the fraction b / 256, whose digits in base 3 are the symbols.

    Args:
      symbols: [..., 5 m] uint8.

    Returns:
      [..., m] uint8.

    Example:
      >>> pack_planes(jnp.array([2, 0, 1, 1, 2], jnp.uint8))
      Array([186], dtype=uint8)
    """
    *rows, width = symbols.shape
    planes = symbols.reshape(*rows, PLANES, width // PLANES)
    number = planes[..., 0, :]  # at most 242
    for i in range(1, PLANES):
        number = number * np.uint8(3) + planes[..., i, :]
    # Rounded up to a multiple of 1/256, which is still below the next number.
    total = np.uint32(3**PLANES)
    scaled = number.astype(jnp.uint32) * np.uint32(256) + (total - np.uint32(1))
    return (scaled // total).astype(jnp.uint8)


def unpack_planes(packed: Array) -> Array:
    """The inverse of `pack_planes`.

    Args:
      packed: [..., m] uint8.

    Returns:
      [..., 5 m] uint8.

    Example:
      >>> unpack_planes(jnp.array([186], jnp.uint8))
      Array([2, 0, 1, 1, 2], dtype=uint8)
    """
    *rows, width = packed.shape
    powers = np.array([3**i for i in range(PLANES)], np.uint8)
    powers = powers.reshape(*(1 for _ in rows), PLANES, 1)
    fractions = packed[..., None, :] * powers  # modulo 256
    digits = (fractions.astype(jnp.uint16) * np.uint16(3)) >> np.uint16(8)
    return digits.astype(jnp.uint8).reshape(*rows, PLANES * width)
