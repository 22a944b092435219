"""What each method sends, promises, refuses and is called: facts.toml says it."""

import math
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import SpecError, make_compressor, nbits

FACTS = tomllib.loads(Path(__file__).with_name("facts.toml").read_text())


def number(count: str) -> Any:
    """Of a count such as "10 * 32 + 64", which stands in the table as it was made."""
    return eval(count, dict(vars(math)))


@pytest.mark.parametrize(("method", "size", "dtype", "bits"), FACTS["sent"])
def test_bits_that_are_sent(method: str, size: int, dtype: str, bits: str) -> None:
    compressor = make_compressor(method)
    spec = jax.ShapeDtypeStruct((size,), jnp.dtype(dtype))
    state, key = compressor.init(spec), jax.random.key(0)
    payload, _ = jax.eval_shape(compressor.compress, spec, state, key)
    assert nbits(payload) == number(bits)


@pytest.mark.parametrize(("method", "size", "bits"), FACTS["ideal"])
def test_information_bound(method: str, size: int, bits: str) -> None:
    spec = jax.ShapeDtypeStruct((size,), jnp.float32)
    assert make_compressor(method).ideal_bits(spec) == pytest.approx(number(bits))


@pytest.mark.parametrize(("method", "delta"), FACTS["contraction"])
def test_declared_contraction(method: str, delta: str) -> None:
    spec = jax.ShapeDtypeStruct((1000,), jnp.float32)
    expected = number(delta)
    assert make_compressor(method).contraction(spec) == pytest.approx(expected)


@pytest.mark.parametrize(("method", "message"), FACTS["refused"])
def test_arguments_out_of_range_are_refused(method: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        make_compressor(method)
    assert message in str(error.value)


@pytest.mark.parametrize(("method", "name"), FACTS["names"])
def test_names_are_canonical(method: str, name: str) -> None:
    assert make_compressor(method).name == name
    assert make_compressor(name).name == name
