"""Each method against its slow and obvious version."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import make_compressor
from jaxcomp.compressors import compose
from jaxcomp.core.coding.payloads import Quantized, Sparse
from jaxcomp.core.trees import spec_of
from tests import laws, references

SIZE = 257


def heavy(seed: int = 0, size: int = SIZE) -> np.ndarray:
    values = np.random.default_rng(seed).standard_t(3, size=size)
    return values.astype(np.float32)


def through(method: str, x: np.ndarray) -> np.ndarray:
    """C(x) of a method that draws nothing."""
    return np.asarray(laws.outputs(make_compressor(method), x, no_keys()))[0]


def no_keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), 1)


def test_composition_compresses_the_values_alone(key: jax.Array) -> None:
    x = jnp.asarray(heavy())
    compressor = make_compressor("top_k(keep=0.1) | qsgd(levels=127)")
    payload, _ = compressor.compress(x, compressor.init(spec_of(x)), key)
    assert isinstance(payload, Sparse)
    assert isinstance(payload.values, Quantized)
    y = np.asarray(compressor.decompress(payload, spec_of(x)))
    expected = references.top_k(np.asarray(x), 26)
    unit = float(np.linalg.norm(expected)) / 127
    np.testing.assert_allclose(y, expected, rtol=0, atol=1.001 * unit)
    assert not y[expected == 0].any()


def test_a_composition_of_aligned_methods_is_aligned(key: jax.Array) -> None:
    compressor = make_compressor("random_k(keep=0.5) | random_k(keep=0.5)")
    laws.check_aligned(compressor, jnp.asarray(heavy(1)), jnp.asarray(heavy(2)), key)


def test_three_stages_compose() -> None:
    x = heavy()
    y = through("top_k(keep=0.5) | top_k(keep=0.2) | sign", x)
    largest = references.top_k(x, round(0.2 * round(0.5 * SIZE)))
    chosen = largest != 0
    np.testing.assert_allclose(y[chosen], references.sign(largest[chosen]), rtol=1e-6)
    assert not y[~chosen].any()


def test_a_quantiser_cannot_be_on_the_left() -> None:
    with pytest.raises(ValueError, match="put a sparsifier such as top_k on the left"):
        compose(make_compressor("sign"), make_compressor("top_k"))
