"""Bits by hand: what each method sends, counted on paper."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import make_compressor, nbits
from jaxcomp.core.types import Spec

# Packed symbols fill bytes, one field of 8, 4, 2 or 1 bits after the other.
SENT = [
    ("none", 1000, "float32", 32_000),
    ("none", 1000, "bfloat16", 16_000),
    # Places by Elias-Fano, in words. k of n + 1 (the last one stands for none), 2^l the
    # power of two below (n + 1) / k: k l bits in front, k + floor(n / 2^l) + 1 behind.
    # l = 6: 60 bits are 2 words, 10 + 15 + 1 = 26 one.
    ("top_k(keep=0.01)", 1000, "float32", 10 * 32 + 3 * 32),
    ("top_k(keep=0.01)", 1000, "float16", 10 * 16 + 3 * 32),
    # l = 2: 1024 words, 16,384 + 16,384 + 1 bits are 1025.
    ("top_k(keep=0.25)", 65_536, "float32", 16_384 * 32 + 2049 * 32),
    # l = 6: 187.5 are 188 words, 1000 + 1562 + 1 bits are 81.
    ("top_k(keep=0.01)", 100_000, "float32", 1000 * 32 + 269 * 32),
    # Two words by Elias-Fano, so plain.
    ("top_k(keep=0.01)", 3, "float32", 32 + 16),
    ("top_k(keep=0.01, index='plain')", 1000, "float32", 10 * (32 + 16)),
    ("top_k(keep=0.01, index='plain')", 65_535, "float32", 655 * (32 + 16)),
    ("top_k(keep=0.01, index='plain')", 65_536, "float32", 655 * (32 + 32)),
    # 10 blocks of 100, so 7 bits, in fields of 4, 2 and 1: 5, 3 and 2 bytes.
    ("block_top_k(keep=0.01)", 1000, "float32", 10 * 32 + 10 * 8),
    # 2 of each of 10 blocks of 100: 10, 5 and 3 bytes.
    ("block_top_k(keep=0.02, per_block=2)", 1000, "float16", 20 * 16 + 18 * 8),
    # Room for 50, l = 4: 7 words, 50 + 62 + 1 bits are 4. One word for the count.
    ("threshold(cap=0.05)", 1000, "float32", 50 * 32 + 11 * 32 + 32),
    ("adaptive_threshold(cap=0.05)", 1000, "bfloat16", 50 * 16 + 11 * 32 + 32),
    # Room for 13, l = 6: 78 bits are 3 words, 13 + 15 + 1 bits are one.
    ("dgc_top_k(keep=0.01)", 1000, "float32", 13 * 32 + 4 * 32 + 32),
    ("rotating_slice(keep=0.01)", 1000, "float32", 10 * 32 + 32),
    # Room for 31.6 + 45.0 + 8, so 85, l = 3: 8 words, 85 + 125 + 1 bits are 7. Norm,
    # count, and 85 signs in 11 bytes.
    ("qsgd_sparse", 1000, "float32", 32 + 15 * 32 + 11 * 8 + 32),
    ("qsgd_sparse(index='plain')", 1000, "float16", 32 + 85 * 16 + 11 * 8 + 32),
    ("random_k(keep=0.01)", 1000, "float32", 10 * 32 + 64),
    ("random_k(keep=0.01)", 100_000, "bfloat16", 1000 * 16 + 64),
    ("sign", 1000, "float32", 125 * 8 + 32),
    ("sign", 1001, "float16", 126 * 8 + 32),
    ("sign(scale='l2')", 1000, "float32", 125 * 8 + 32),
    ("sign(scaled=False)", 1000, "float32", 200 * 8 + 32),
    ("sign(scaled=False)", 1001, "float16", 201 * 8 + 32),
    # 9 blocks of 112, so that 1008 elements are sent, a scale of each, the seed.
    ("eden", 1000, "float32", 1008 + 9 * 16 + 64),
    # 12 blocks of 192. Fields of 2 bits and of 1.
    ("eden(bits=3, unbiased=False)", 2304, "bfloat16", 3 * 2304 + 12 * 16 + 64),
    # 256 blocks of 192.
    ("eden(bits=2)", 49_152, "float32", 2 * 49_152 + 256 * 16 + 64),
    # Of three symbols five fill a byte, of five symbols three.
    ("qsgd(levels=1, bucket=None)", 1000, "float32", 200 * 8 + 32),
    ("qsgd(levels=2, bucket=None)", 1000, "float32", 334 * 8 + 32),
    ("qsgd(levels=7, bucket=512)", 1000, "float32", 4000 + 2 * 32),
    # What ChocoSGD calls 16 levels, and a sign: fields of 8, 8 and 1 bits.
    ("qsgd(levels=65535, bucket=512)", 1000, "float32", 2125 * 8 + 2 * 32),
    # 4 bits and 1.
    ("qsgd(levels=8, bucket=512)", 1000, "float32", (500 + 125) * 8 + 2 * 32),
    ("qsgd(levels=127, bucket=512)", 1000, "float32", 8000 + 2 * 32),
    ("qsgd(levels=127, norm='max', damped=True)", 1000, "float16", 8000 + 2 * 32),
    # 8 bits and 1.
    ("qsgd(levels=128, rounding='nearest')", 1001, "float32", (1001 + 126) * 8 + 64),
    # Of a long vector an even number of symbols is packed.
    ("qsgd(levels=127, bucket=None)", 100_001, "float32", 100_002 * 8 + 32),
    ("terngrad", 1000, "float32", 200 * 8 + 32),
    ("terngrad(clip=2.5, bucket=300)", 1001, "bfloat16", 201 * 8 + 4 * 32),
    ("natural", 1001, "float32", (1001 + 126) * 8),
    ("natural", 1000, "float16", 9000),
    ("cast", 1000, "float32", 16_000),
    ("cast(dtype='float8_e5m2')", 1001, "bfloat16", 8 * 1001),
    ("block_scaled", 1000, "float32", 8000 + 32 * 8),
    ("block_scaled(bits=4, block=100)", 1001, "float32", 501 * 8 + 11 * 8),
    # 100 values of 4 bits, one unit, 100 places: 10 and 8 words.
    ("top_k(keep=0.1) | qsgd(levels=7)", 1000, "float32", 400 + 32 + 18 * 32),
    # 200 signs, one scale, 200 places: 13 and 15 words.
    ("top_k(keep=0.2) | sign", 1000, "float32", 200 + 32 + 28 * 32),
    # 500 values of 31 levels, 4 bits and 1, one unit, one seed.
    ("random_k(keep=0.5) | qsgd(levels=15)", 1000, "float32", 313 * 8 + 32 + 64),
    # 32 x 32 with zeros at the end; four pairs of 32 and 32 numbers.
    ("svd(rank=4)", 1000, "float32", 4 * 64 * 32),
    ("atomo(rank=4)", 1000, "bfloat16", 4 * 64 * 16),
    ("svd(rank=16)", 1000, "float32", 32_000),
    # Both sides: 128 levels of 8 bits and four units.
    ("qsvd(rank=4, levels=127)", 1000, "float32", 2 * (128 * 8 + 4 * 32)),
    ("count_sketch(ratio=0.1)", 1000, "float32", 100 * 32 + 64),
    ("count_sketch(ratio=0.1, rows=3)", 1000, "float16", 3 * 33 * 16 + 64),
    ("count_sketch(ratio=0.1, rows=5)", 5, "float32", 5 * 32),
]

IDEAL = [
    ("none", 1000, 32_000.0),
    ("top_k(keep=0.5)", 4, 2 * 32 + math.log2(6)),
    ("top_k(keep=1.0)", 4, 4 * 32),
    ("random_k(keep=0.01)", 1000, 10 * 32 + 64),
    # Blocks of 2, 2 and 1.
    ("block_top_k(keep=0.5)", 5, 3 * 32 + 2),
    ("threshold(cap=0.5)", 4, 2 * 32 + math.log2(6)),
    ("adaptive_threshold(cap=0.5)", 4, 2 * 32 + math.log2(6)),
    ("dgc_top_k(keep=0.5, upper=1.0)", 4, 2 * 32 + math.log2(6)),
    ("rotating_slice(keep=0.5)", 4, 2 * 32),
    ("qsgd_sparse", 4, 32 + 2 + math.log2(6)),
    ("sign", 1000, 1000 + 32),
    ("eden(bits=4)", 1000, 4000 + 9 * 16 + 64),
    ("qsgd(levels=1, bucket=None)", 1000, 1000 * math.log2(3) + 32),
    ("qsgd(levels=7, bucket=512)", 1000, 1000 * math.log2(15) + 2 * 32),
    ("terngrad(bucket=300)", 1000, 1000 * math.log2(3) + 4 * 32),
    ("natural", 1000, 9000),
    ("cast(dtype='float16')", 1000, 16_000),
    ("block_scaled", 1000, 1000 * math.log2(255) + 32 * 8),
    ("block_scaled(bits=4)", 1000, 1000 * math.log2(15) + 32 * 8),
    ("top_k(keep=0.5) | sign", 4, 2 + 32 + math.log2(6)),
    # A matrix of rank 4 has 4 (32 + 32 - 4) free numbers.
    ("svd(rank=4)", 1000, 4 * 60 * 32),
    ("atomo(rank=16)", 1000, 32_000),
    ("qsvd(rank=4, levels=7)", 1000, 256 * math.log2(15) + 8 * 32),
    ("count_sketch(ratio=0.1)", 1000, 100 * 32 + 64),
]

CONTRACTION = [
    ("none", 1.0),
    ("top_k(keep=0.01)", 0.01),
    ("random_k(keep=0.01)", 0.01),
    ("random_k(keep=0.8, unbiased=True)", 2 - 1 / 0.8),
    ("random_k(keep=0.5, unbiased=True)", None),
    ("block_top_k(keep=0.01)", 1 / 100),
    # 4 blocks of 250.
    ("block_top_k(keep=0.01, per_block=3)", 3 / 250),
    ("block_top_k(keep=1.0)", 1.0),
    ("threshold(v=0.001)", 0),
    ("adaptive_threshold(cap=0.05)", 4 / 1003),
    ("adaptive_threshold(cap=0.001)", 1 / 1000),
    ("adaptive_threshold(cap=0.05, overflow='nan')", 0),
    ("dgc_top_k(keep=0.01)", 0.01),
    # 111 samples at a stride of 9, and the 12 largest of them.
    ("dgc_top_k(keep=0.1, sample=0.1)", 12 / 1000),
    ("dgc_top_k(keep=0.1, sample=0.1, strided=False)", 1 / 1000),
    ("dgc_top_k(keep=0.1, sample=0.1, resample=False)", 0),
    ("rotating_slice(keep=0.5)", 0),
    ("rotating_slice(keep=1.0)", 1.0),
    ("qsgd_sparse", None),
    ("sign", 1 / 1000),
    ("eden", None),
    ("qsgd(levels=127, bucket=512)", 1 - 512 / 127**2),
    ("qsgd(levels=7, bucket=25)", 1 - 25 / 49),
    ("qsgd(levels=7, bucket=512)", None),
    ("qsgd(levels=7, bucket=512, damped=True)", 1 / (1 + math.sqrt(512) / 7)),
    ("qsgd(levels=7, bucket=25, damped=True)", 49 / (49 + 25)),
    ("qsgd(levels=7, bucket=512, norm='max')", None),
    ("qsgd(levels=7, bucket=50, norm='max')", 1 - 49 / 4 / 49),
    ("qsgd(levels=2, bucket=10, norm='max')", 1 - 9 / 16),
    ("qsgd(levels=1, bucket=2, norm='max', damped=True)", 4 / 5),
    ("qsgd(levels=7, bucket=98, rounding='nearest')", 1 / 2),
    ("qsgd(levels=7, bucket=196, rounding='nearest')", 0),
    ("qsgd(levels=7, bucket=197, norm='max', rounding='nearest')", 1 / 2),
    ("sign(scaled=False)", None),
    ("sign(scale='l2')", None),
    ("atomo(rank=16, chance='relative')", 1.0),
    ("terngrad", None),
    ("terngrad(bucket=4)", 1 / 2),
    ("terngrad(clip=2.5, bucket=4)", None),
    ("natural", 7 / 8),
    ("cast", 1 - 2**-16),
    ("cast(dtype='float16')", 0),
    ("cast(dtype='float8_e4m3fn')", 0),
    ("block_scaled(bits=8, block=1)", 1 - 0.25 / 63.75**2),
    ("block_scaled(bits=4, block=1)", 1 - 1 / 25),
    ("block_scaled(bits=4, block=33)", 1 - 2.25 / 14.25),
    ("block_scaled(bits=8, block=1, rounding='stochastic')", 1 - 0.25 / 63.5**2),
    ("block_scaled(bits=4, block=73, rounding='stochastic')", 1 - 1 / 24 - 1 / 2),
    ("block_scaled(bits=4, block=145, rounding='stochastic')", None),
    ("top_k(keep=0.1) | sign", 0.1 / 100),
    (
        "random_k(keep=0.8, unbiased=True) | qsgd(levels=127)",
        2 - 1.25 * (1 + 512 / 127**2),
    ),
    ("random_k(keep=0.8, unbiased=True) | sign", None),
    ("svd(rank=4)", 4 / 32),
    ("svd(rank=16)", 1.0),
    ("svd(rank=4) | qsgd(levels=127)", 4 / 32 * (1 - 128 / 127**2)),
    ("atomo(rank=4)", None),
    ("atomo(rank=16)", 1.0),
    ("qsvd(rank=4)", 4 / 32 * (2 - (1 + 31 / 4 / 127**2) ** 2)),
    ("qsvd(rank=4, unbiased=True)", None),
    ("count_sketch(ratio=0.1)", 1 / 10),
    ("count_sketch(ratio=0.1, rows=5)", 1 / (1 + 49 / 5)),
    ("count_sketch(ratio=0.1, estimate='mean')", None),
]


def vector(size: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), jnp.dtype(dtype))


def payload_spec(method: str, spec: Spec) -> Spec:
    compressor = make_compressor(method)
    state = compressor.init(spec)
    return jax.eval_shape(compressor.compress, spec, state, jax.random.key(0))[0]


@pytest.mark.parametrize(("method", "size", "dtype", "bits"), SENT)
def test_bits_that_are_sent(method: str, size: int, dtype: str, bits: int) -> None:
    assert nbits(payload_spec(method, vector(size, dtype))) == bits


@pytest.mark.parametrize(("method", "size", "bits"), IDEAL)
def test_information_bound(method: str, size: int, bits: float) -> None:
    assert make_compressor(method).ideal_bits(vector(size)) == pytest.approx(bits)


@pytest.mark.parametrize(("method", "delta"), CONTRACTION)
def test_declared_contraction(method: str, delta: float | None) -> None:
    assert make_compressor(method).contraction(vector(1000)) == pytest.approx(delta)
