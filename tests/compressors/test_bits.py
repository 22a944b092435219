"""Bits by hand: what each method sends, counted on paper."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import make_compressor, nbits
from jaxcomp.base import Spec

# Packed symbols fill columns of 32, so 1000 symbols take 32 columns of `bits` words.
SENT = [
    ("none", 1000, "float32", 32_000),
    ("none", 1000, "bfloat16", 16_000),
    ("top_k(keep=0.01)", 1000, "float32", 10 * (32 + 16)),
    ("top_k(keep=0.01)", 1000, "float16", 10 * (16 + 16)),
    ("top_k(keep=0.25)", 65_536, "float32", 16_384 * (32 + 16)),
    ("top_k(keep=0.01)", 100_000, "float32", 1000 * (32 + 32)),
    ("top_k(keep=0.01)", 3, "float32", 32 + 16),
    ("random_k(keep=0.01)", 1000, "float32", 10 * 32 + 64),
    ("random_k(keep=0.01)", 100_000, "bfloat16", 1000 * 16 + 64),
    ("sign", 1000, "float32", 32 * 32 + 32),
    ("sign", 1024, "float16", 32 * 32 + 32),
    ("qsgd(levels=1, bucket=None)", 1000, "float32", 2 * 32 * 32 + 32),
    ("qsgd(levels=7, bucket=512)", 1000, "float32", 4 * 32 * 32 + 2 * 32),
    ("qsgd(levels=8, bucket=512)", 1000, "float32", 5 * 32 * 32 + 2 * 32),
    ("qsgd(levels=127, bucket=512)", 1000, "float32", 8 * 32 * 32 + 2 * 32),
    # 100 values in 4 columns of 4 words, one unit, 100 indices.
    ("top_k(keep=0.1) | qsgd(levels=7)", 1000, "float32", 16 * 32 + 32 + 100 * 16),
    # 200 signs in 7 words, one scale, 200 indices.
    ("top_k(keep=0.2) | sign", 1000, "float32", 7 * 32 + 32 + 200 * 16),
    # 500 values of 31 levels in 16 columns of 5 words, one unit, one seed.
    ("random_k(keep=0.5) | qsgd(levels=15)", 1000, "float32", 80 * 32 + 32 + 64),
]

IDEAL = [
    ("none", 1000, 32_000.0),
    ("top_k(keep=0.5)", 4, 2 * 32 + math.log2(6)),
    ("top_k(keep=1.0)", 4, 4 * 32),
    ("random_k(keep=0.01)", 1000, 10 * 32 + 64),
    ("sign", 1000, 1000 + 32),
    ("qsgd(levels=1, bucket=None)", 1000, 1000 * math.log2(3) + 32),
    ("qsgd(levels=7, bucket=512)", 1000, 1000 * math.log2(15) + 2 * 32),
    ("top_k(keep=0.5) | sign", 4, 2 + 32 + math.log2(6)),
]

CONTRACTION = [
    ("none", 1.0),
    ("top_k(keep=0.01)", 0.01),
    ("random_k(keep=0.01)", 0.01),
    ("random_k(keep=0.8, unbiased=True)", 2 - 1 / 0.8),
    ("random_k(keep=0.5, unbiased=True)", None),
    ("sign", 1 / 1000),
    ("qsgd(levels=127, bucket=512)", 1 - 512 / 127**2),
    ("qsgd(levels=7, bucket=25)", 1 - 25 / 49),
    ("qsgd(levels=7, bucket=512)", None),
    ("top_k(keep=0.1) | sign", 0.1 / 100),
    (
        "random_k(keep=0.8, unbiased=True) | qsgd(levels=127)",
        2 - 1.25 * (1 + 512 / 127**2),
    ),
    ("random_k(keep=0.8, unbiased=True) | sign", None),
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
