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
QSGD = make_compressor("qsgd(levels=7, bucket=None)")
RANDOM_K = make_compressor("random_k(keep=0.25)")
SIGN = make_compressor("sign")
TOP_K = make_compressor("top_k(keep=0.1)")


def decoding(compressor: Compressor, change: Callable[[jax.Array], Any]) -> Compressor:
    """The same compressor with its output changed."""

    def decompress(payload: Any, spec: Any) -> jax.Array:
        return change(compressor.decompress(payload, spec))

    return compressor._replace(decompress=decompress)


def encoding(compressor: Compressor, change: Callable[[jax.Array], Any]) -> Compressor:
    """The same compressor with its input changed."""

    def compress(x: jax.Array, state: Any, key: jax.Array) -> Any:
        return compressor.compress(change(x), state, key)

    return compressor._replace(compress=compress)


BIASED = {
    "half a percent short": decoding(QSGD, lambda y: 0.995 * y),
    "a small shift of all": decoding(QSGD, lambda y: y + 0.015),
    "one element off": decoding(QSGD, lambda y: y.at[100].add(0.1)),
    "no factor n/k": RANDOM_K,
}


@pytest.mark.parametrize("name", BIASED)
def test_a_biased_method_is_not_unbiased(name: str) -> None:
    with pytest.raises(AssertionError, match="bias|off|too long"):
        laws.check_unbiased(BIASED[name], X)


def test_an_honest_method_is_unbiased() -> None:
    laws.check_unbiased(QSGD, X)


@pytest.mark.parametrize(
    ("compressor", "x"),
    [(TOP_K, jnp.ones(257)), (RANDOM_K, X), (SIGN, jnp.zeros(257).at[3].set(1.0))],
    ids=["top_k", "random_k", "sign"],
)
def test_a_contraction_that_is_too_large_fails(
    compressor: Compressor, x: jax.Array
) -> None:
    def boast(spec: Any) -> float:
        return 1.1 * (compressor.contraction(spec) or 0)

    with pytest.raises(AssertionError):
        laws.check_contraction(compressor._replace(contraction=boast), x)


def test_places_that_follow_x_are_not_aligned(key: jax.Array) -> None:
    with pytest.raises(AssertionError):
        laws.check_aligned(TOP_K._replace(aligned=True), X, -X[::-1], key)


def test_a_decoder_that_is_not_linear_is_not_aligned(key: jax.Array) -> None:
    with pytest.raises(AssertionError):
        laws.check_aligned(decoding(RANDOM_K, jnp.abs), X, -X[::-1], key)


def test_randomness_beside_the_key_shows(key: jax.Array) -> None:
    calls = itertools.count()
    with pytest.raises(AssertionError):
        laws.check_same_key_same_payload(
            encoding(TOP_K, lambda x: x + next(calls)), X, key
        )


def test_overflow_is_not_finite(key: jax.Array) -> None:
    with pytest.raises(AssertionError):
        laws.check_finite(decoding(TOP_K, lambda y: y * 1e38 * 1e38), X, key)


@pytest.mark.parametrize("compressor", [TOP_K, RANDOM_K], ids=["top_k", "random_k"])
def test_hiding_a_nan_fails(compressor: Compressor) -> None:
    with pytest.raises(AssertionError):
        laws.check_non_finite_surfaces(encoding(compressor, jnp.nan_to_num), X)


def test_a_finite_number_in_place_of_a_nan_fails() -> None:
    silent = decoding(TOP_K, lambda y: jnp.where(jnp.isfinite(y), y, 1.0))
    with pytest.raises(AssertionError):
        laws.check_non_finite_surfaces(silent, X)


def test_state_that_changes_its_type_recompiles(key: jax.Array) -> None:
    def compress(x: jax.Array, state: Any, key: jax.Array) -> Any:
        payload, _ = TOP_K.compress(x, (), key)
        return payload, jnp.asarray(state, jnp.float32)

    changing = TOP_K._replace(init=lambda spec: 0, compress=compress)
    with pytest.raises(AssertionError, match="compiled again"):
        laws.check_no_recompilation(changing, X, key)
    with pytest.raises(AssertionError):
        laws.check_round_trip(
            changing._replace(init=lambda spec: jnp.zeros((), jnp.int32)), X, key
        )


def test_a_wrong_shape_or_dtype_shows(key: jax.Array) -> None:
    for change in (lambda y: y[None], lambda y: y.astype(jnp.bfloat16)):
        with pytest.raises(AssertionError):
            laws.check_round_trip(decoding(TOP_K, change), X, key)


def test_a_sum_that_forgets_a_payload_shows(key: jax.Array) -> None:
    def forget(payloads: Any, spec: Any) -> jax.Array:
        rest = jax.tree.map(lambda leaf: leaf[1:], payloads)
        return TOP_K.decompress_sum(rest, spec)

    keys = jax.random.split(key, 3)
    with pytest.raises(AssertionError):
        laws.check_sum(
            TOP_K._replace(decompress_sum=forget), jnp.stack([X, -X, X]), keys
        )


def test_a_bound_above_what_is_sent_shows(key: jax.Array) -> None:
    with pytest.raises(AssertionError):
        laws.check_bits(TOP_K._replace(ideal_bits=lambda spec: 1e6), X, key)
