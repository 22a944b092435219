"""Magnitudes of floats as integers, and ranks among them.

The bits of a float without its sign bit have the same order as its magnitude. NaN is
above infinity, and infinity above all numbers.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array


def magnitude_bits(x: Array) -> Array:
    """Unsigned integers in the same order as |x|; that of NaN is the largest.

    Example:
      >>> magnitude_bits(jnp.array([-2.0, 1.0, 0.0])).argsort()
      Array([2, 1, 0], dtype=int32)
    """
    unsigned = unsigned_of(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    return bits & np.array(sign_bit(unsigned) - 1, unsigned)


def magnitude_bits_of(value: float, dtype: Any) -> int:
    """`magnitude_bits` of a Python number, rounded up to the next number of a dtype.

    Example:
      >>> hex(magnitude_bits_of(1.0, jnp.float32))
      '0x3f800000'
    """
    rounded = np.asarray(abs(value)).astype(dtype)
    bits = int(rounded.view(unsigned_of(dtype)))
    return bits if float(rounded) >= abs(value) else bits + 1


def unsigned_of(dtype: Any) -> Any:
    """The unsigned integers of the same size as a float type."""
    return {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[jnp.dtype(dtype).itemsize]


def largest_reached(
    reached: Callable[[Array], Array],
    k: Array,
    unsigned: Any,
    leading: int | None = None,
    step: int = 4,
) -> Array:
    """The largest magnitude bits that at least k elements reach, some bits at a time.

    A round counts for all values of the next `step` bits how many elements reach them.
    On a GPU this takes as many kernels as it takes to try one of them.

    Args:
      reached: [..., 2^step - 1] ascending magnitude bits -> how many elements reach
        each of them.
      k: [...] uint32.
      unsigned: type of the bits.
      leading: number of leading bits that are found, a multiple of `step`; the others
        are zero. The first one is the sign bit, which is zero. None finds all.
      step: bits of a round, a power of two.

    Returns:
      [...] magnitude bits. Where k is zero, they are the largest that there are.
    """
    width = jnp.iinfo(unsigned).bits
    shape = (1,) * k.ndim + (-1,)
    digits = np.arange(1, 1 << step).astype(unsigned).reshape(shape)

    def body(i: Array, found: Array) -> Array:
        shift = (width - step - step * i).astype(unsigned)
        enough = reached(found[..., None] | (digits << shift)) >= k[..., None]
        # Fewer elements reach a larger magnitude: those that are enough come first.
        return found | (jnp.sum(enough, axis=-1, dtype=unsigned) << shift)

    rounds = min(leading or width, width) // step
    start = vary_like(jnp.zeros(k.shape, unsigned), k)
    found = jax.lax.fori_loop(0, rounds, body, start)
    return found & np.array(sign_bit(unsigned) - 1, unsigned)


def reached_in_rows(bits: Array, magnitudes: Array) -> Array:
    """How many elements of each row reach each of some magnitudes.

    Args:
      bits: [rows, columns] magnitude bits.
      magnitudes: [rows, k] or [1, k] magnitude bits.

    Returns:
      [rows, k] uint32.

    Example:
      >>> bits = jnp.array([[5, 7, 1]], jnp.uint32)
      >>> reached_in_rows(bits, jnp.array([[2, 6]], jnp.uint32))
      Array([[2, 1]], dtype=uint32)
    """
    columns, count = bits.shape[1], magnitudes.shape[1]
    # Several counts share a word while they are added up: a CPU would otherwise store
    # the results of all comparisons.
    width = next(w for w in (8, 16, 32) if columns < 1 << w)
    together = 32 // width
    counts = []
    for first in range(0, count, together):
        each = [
            (bits >= magnitudes[:, i, None]).astype(jnp.uint32)
            << np.uint32(width * (i - first))
            for i in range(first, min(first + together, count))
        ]
        word = jnp.sum(functools.reduce(jnp.bitwise_or, each), axis=1, dtype=jnp.uint32)
        last = np.uint32((1 << width) - 1)
        counts += [(word >> np.uint32(width * i)) & last for i in range(len(each))]
    return jnp.stack(counts, axis=1)


def sign_bit(unsigned: Any) -> int:
    """The integer with the leading bit alone."""
    return 1 << (jnp.iinfo(unsigned).bits - 1)
