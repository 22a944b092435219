"""Tests of the laws: a compressor that lies must fail the law that it breaks."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import make_compressor
from jaxcomp.core.types import Compressor
from tests import laws

X = jnp.asarray(np.random.default_rng(0).normal(size=257), jnp.float32)
ONE = jnp.zeros(257).at[3].set(1.0)
QSGD = make_compressor("qsgd(levels=7, bucket=None)")
RANDOM_K = make_compressor("random_k(keep=0.25)")
SIGN = make_compressor("sign")
TOP_K = make_compressor("top_k(keep=0.1)")
CALLS = itertools.count()


def decoding(compressor: Compressor, change: Callable[[jax.Array], Any]) -> Compressor:
    """The same compressor with its output changed."""
    decode = compressor.decompress
    return compressor._replace(decompress=lambda p, spec: change(decode(p, spec)))


def encoding(compressor: Compressor, change: Callable[[jax.Array], Any]) -> Compressor:
    """The same compressor with its input changed."""
    encode = compressor.compress
    return compressor._replace(compress=lambda x, s, key: encode(change(x), s, key))


def boasting(compressor: Compressor) -> Compressor:
    """It claims a tenth more."""
    delta = compressor.contraction
    return compressor._replace(contraction=lambda spec: 1.1 * (delta(spec) or 0))


def forgetful(payloads: Any, spec: Any) -> jax.Array:
    return TOP_K.decompress_sum(jax.tree.map(lambda leaf: leaf[1:], payloads), spec)


def counted(start: Any) -> Compressor:
    """Its state is a number, and becomes one in float32."""

    def compress(x: jax.Array, state: Any, key: jax.Array) -> Any:
        return TOP_K.compress(x, (), key)[0], jnp.asarray(state, jnp.float32)

    return TOP_K._replace(init=lambda spec: start, compress=compress)


LIES = {
    "unbiased": [
        (decoding(QSGD, lambda y: 0.995 * y), X),
        (decoding(QSGD, lambda y: y + 0.015), X),
        (decoding(QSGD, lambda y: y.at[100].add(0.1)), X),
        (RANDOM_K, X),  # no factor n/k
    ],
    "contraction": [
        (boasting(TOP_K), jnp.ones(257)),
        (boasting(RANDOM_K), X),
        (boasting(SIGN), ONE),
    ],
    "aligned": [
        (TOP_K._replace(aligned=True), X, -X[::-1]),  # its places follow x
        (decoding(RANDOM_K, jnp.abs), X, -X[::-1]),
    ],
    "same_key_same_payload": [(encoding(TOP_K, lambda x: x + next(CALLS)), X)],
    "finite": [(decoding(TOP_K, lambda y: y * 1e38 * 1e38), X)],
    "non_finite_surfaces": [
        (encoding(TOP_K, jnp.nan_to_num), X),
        (encoding(RANDOM_K, jnp.nan_to_num), X),
        (decoding(TOP_K, lambda y: jnp.where(jnp.isfinite(y), y, 1.0)), X),
    ],
    "no_recompilation": [(counted(0), X)],
    "round_trip": [
        (counted(jnp.zeros((), jnp.int32)), X),
        (decoding(TOP_K, lambda y: y[None]), X),
        (decoding(TOP_K, lambda y: y.astype(jnp.bfloat16)), X),
    ],
    "sum": [(TOP_K._replace(decompress_sum=forgetful), jnp.stack([X, -X, X]))],
    "bits": [(TOP_K._replace(ideal_bits=lambda spec: 1e6), X)],
}
KEYLESS = ("unbiased", "contraction", "non_finite_surfaces")
CASES = [(law, *lie) for law, lies in LIES.items() for lie in lies]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_lie_breaks_the_law(case: tuple[Any, ...], key: jax.Array) -> None:
    law, compressor, *inputs = case
    keys = jax.random.split(key, 3) if law == "sum" else key
    more = [] if law in KEYLESS else [keys]
    with pytest.raises(AssertionError):
        getattr(laws, f"check_{law}")(compressor, *inputs, *more)


def test_an_honest_method_is_unbiased() -> None:
    laws.check_unbiased(QSGD, X)
