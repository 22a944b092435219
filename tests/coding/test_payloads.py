"""Bit packing, the fused buffer, and the sizes that are read off payloads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import nbits
from jaxcomp.core.coding import packing
from jaxcomp.core.coding.indices import index_dtype
from jaxcomp.core.coding.packing import bit_width, complete
from jaxcomp.core.coding.payloads import Dense, Seeded, Sparse, fuse, map_values, split
from jaxcomp.core.trees import spec_of
from tests import references

SIZE = 71  # no multiple of anything

# One program each instead of one for every operation inside.
pack = jax.jit(packing.pack, static_argnums=1)
pack_symbols = jax.jit(packing.pack_symbols, static_argnums=1)
unpack = jax.jit(packing.unpack, static_argnums=(1, 2))
unpack_symbols = jax.jit(packing.unpack_symbols, static_argnums=(1, 2))


def check_packing(symbols: np.ndarray, bits: int) -> None:
    packed = pack(jnp.asarray(symbols), bits)
    assert packed.dtype == jnp.uint8
    assert packed.tolist() == references.pack(symbols.tolist(), bits)
    np.testing.assert_array_equal(unpack(packed, bits, symbols.size), symbols)


@pytest.mark.parametrize("bits", range(1, 33))
def test_packing_of_every_width(bits: int) -> None:
    rng = np.random.default_rng(bits)
    symbols = rng.integers(0, 1 << bits, SIZE, dtype=np.uint64).astype(np.uint32)
    symbols[::7] = (1 << bits) - 1  # all bits set: a spill into a neighbour shows
    check_packing(symbols, bits)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64])
def test_packing_of_any_length(size: int) -> None:
    check_packing(np.arange(size, dtype=np.uint32) % 8, 3)


@pytest.mark.parametrize("alphabet", [*range(2, 21), 31, 33, 128, 129, 255, 256, 257])
def test_packing_of_every_alphabet(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    symbols = rng.integers(0, alphabet, SIZE).astype(np.uint32)
    symbols[:20] = (
        np.arange(20) // 10 * (alphabet - 1)
    )  # all digits least, then largest
    packed = pack_symbols(jnp.asarray(symbols), alphabet)
    digits = {3: 5, 5: 3, 6: 3}.get(alphabet)  # of these a byte holds more digits
    if digits:
        expected = references.pack_digits(symbols.tolist(), alphabet, digits)
    else:
        expected = references.pack(symbols.tolist(), bit_width(alphabet))
    assert packed.tolist() == expected
    np.testing.assert_array_equal(unpack_symbols(packed, alphabet, SIZE), symbols)


@pytest.mark.parametrize("base", [3, 5, 6])
def test_every_byte_of_digits(base: int) -> None:
    digits = {3: 5, 5: 3, 6: 3}[base]
    groups = np.indices((base,) * digits).reshape(digits, -1).T.reshape(-1)
    packed = pack_symbols(jnp.asarray(groups, jnp.uint8), base)
    assert packed.size == base**digits
    np.testing.assert_array_equal(unpack_symbols(packed, base, groups.size), groups)


@pytest.mark.parametrize("alphabet", [2, 3, 9, 15, 33, 256, 1000])
@pytest.mark.parametrize("size", [65_536, 99_999])
def test_long_vectors_are_completed_before_they_are_packed(
    size: int, alphabet: int
) -> None:
    """Symbols of a completed vector are packed as those of the vector are."""
    rng = np.random.default_rng(size)
    symbols = rng.integers(0, alphabet, size).astype(np.uint16)
    completed = complete(jnp.asarray(symbols), alphabet)
    assert size <= completed.size <= size + 16
    np.testing.assert_array_equal(completed[:size], symbols)
    packed = pack_symbols(completed, alphabet)
    assert packed.size == pack_symbols(jnp.asarray(symbols), alphabet).size
    np.testing.assert_array_equal(unpack_symbols(packed, alphabet, size), symbols)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_completed_vector_has_the_bits_of_the_vector(dtype: jnp.dtype) -> None:
    x = any_bits((100_001,), jnp.dtype(dtype).name, seed=0)
    # What XLA has by default, and not `make test`: the old emitters move a NaN's bits.
    emitters = {"xla_cpu_use_fusion_emitters": True}
    exact = jax.jit(complete, static_argnums=1, compiler_options=emitters)
    completed = np.asarray(exact(x, 256))
    assert completed.dtype == dtype
    assert_same_bits(completed[: x.size], x)
    assert_same_bits(completed[x.size :], x[-1:])


def test_indices_are_as_narrow_as_they_can_be() -> None:
    assert index_dtype(2**16) == jnp.uint16
    assert index_dtype(2**16 + 1) == jnp.uint32
    assert index_dtype(2**32) == jnp.uint32
    with pytest.raises(ValueError, match="scope 'bucketed'"):
        index_dtype(2**32 + 1)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("float32", 32), ("bfloat16", 16), ("uint16", 16), ("int8", 8), ("bool", 8)],
)
def test_nbits_of_a_dtype(dtype: str, bits: int) -> None:
    x = jax.ShapeDtypeStruct((3, 5), dtype)
    assert nbits(x) == 15 * bits
    assert nbits({"a": x, "b": (x, jax.ShapeDtypeStruct((), dtype))}) == 31 * bits


WIRE_DTYPES = [
    *("float32", "int32", "uint32", "bfloat16", "float16", "uint16", "uint8", "int8"),
    *("float8_e4m3fn", "float8_e5m2"),
]


def any_bits(shape: tuple[int, ...], dtype: str, seed: int) -> jax.Array:
    """An array of random bits: NaNs with payloads, infinities, denormals."""
    itemsize = jnp.dtype(dtype).itemsize
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (*shape, itemsize), dtype=np.uint8)
    raw[..., -1] |= 0x7F  # the exponent's high bits: many NaNs among the floats
    return jnp.asarray(raw.view(jnp.dtype(dtype)).reshape(shape))


def bits_of(x: jax.Array) -> np.ndarray:
    return np.atleast_1d(np.asarray(x)).view(np.uint8)


def assert_same_bits(a: object, b: object) -> None:
    assert spec_of(a) == spec_of(b)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(bits_of(x), bits_of(y)), a, b
    )


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
def test_fuse_moves_the_bits_of_every_dtype(dtype: str) -> None:
    payload = any_bits((3, 5), dtype, seed=0)
    assert_same_bits(split(fuse(payload), spec_of(payload)), payload)


def test_fuse_of_a_mixed_tree_is_one_buffer_with_little_padding() -> None:
    shapes = [(3,), (), (2, 5), (0,), (7,), (1,)]
    payload = {
        dtype: [any_bits(shape, dtype, seed=i) for i, shape in enumerate(shapes)]
        for dtype in WIRE_DTYPES
    }
    words = jax.jit(fuse)(payload)
    assert words.dtype == jnp.uint32
    assert words.ndim == 1
    assert nbits(payload) <= words.size * 32 < nbits(payload) + 2 * 32
    like = spec_of(payload)
    assert_same_bits(jax.jit(lambda words: split(words, like))(words), payload)


def test_fuse_of_nothing_is_empty() -> None:
    assert fuse(()).size == 0
    assert split(fuse(()), ()) == ()


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_fuse_of_eight_byte_types(dtype: str) -> None:
    with jax.enable_x64(True):
        payload = (any_bits((3,), dtype, seed=0), any_bits((5,), "uint8", seed=1))
        assert_same_bits(split(fuse(payload), spec_of(payload)), payload)


@pytest.mark.parametrize("dtype", ["bool", "int4", "uint4", "int2", "complex64"])
def test_fuse_refuses_what_would_not_travel_as_it_is(dtype: str) -> None:
    like = jax.ShapeDtypeStruct((4,), jnp.dtype(dtype))
    with pytest.raises(TypeError, match=f"pack {dtype} arrays into unsigned words"):
        fuse(jnp.zeros(4, dtype))
    with pytest.raises(TypeError, match=f"pack {dtype} arrays into unsigned words"):
        split(jnp.zeros(4, jnp.uint32), like)


def test_map_values_sees_all_values_at_once_and_nothing_else() -> None:
    def tree(dense: float, inner: float) -> Any:
        sparse = Sparse(jnp.zeros(3), jnp.zeros(3, jnp.uint16))
        seeded = Seeded(jnp.full(3, inner), jnp.zeros(2, jnp.uint32))
        return Dense(jnp.full(2, dense)), {"a": sparse._replace(values=seeded)}

    seen = []

    def negate(values: list[jax.Array]) -> list[jax.Array]:
        seen.append([v.shape for v in values])
        return [-v for v in values]

    result = map_values(negate, tree(1.0, 2.0))
    assert seen == [[(2,), (3,)]]
    assert_same_bits(result, tree(-1.0, -2.0))
