"""Signs in bytes, five in each, in an order that needs nothing but arithmetic.

`packing` puts five neighbours into a byte. Here the row is cut into five planes, and
byte i has element i of each plane. So neighbours go through the same arithmetic, which
CPUs vectorise: they pack and unpack ten times as fast. The row has to be a multiple of
five, so this is for rows of which all parts have one length.
"""

import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array

__all__ = ["PLANES", "pack_planes", "unpack_planes"]

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
