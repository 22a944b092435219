"""Typed keys of jax, and the integers that they consist of."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["as_keys", "is_key", "numbers_of", "numbers_spec"]


def is_key(leaf: Any) -> bool:
    """Whether an array, or the spec of one, holds typed keys.

    Example:
      >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0)), is_key(0)
      (True, False, False)
    """
    kinds = jax.Array | jax.ShapeDtypeStruct
    return isinstance(leaf, kinds) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def numbers_of(leaf: Any) -> Any:
    """The integers of typed keys; anything else unchanged.

    Example:
      >>> numbers_of(jax.random.key(3))
      Array([0, 3], dtype=uint32)
    """
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def numbers_spec(like: Any) -> Any:
    """The spec of `numbers_of(like)`, where `like` may be a spec too."""
    if not is_key(like):
        return like
    data = jax.eval_shape(jax.random.key_data, _spec(like))
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=like.sharding)


def as_keys(numbers: Any, like: Any) -> Any:
    """The integers as typed keys if `like` holds keys; else unchanged."""
    if not is_key(like):
        return numbers
    found = []  # `key_impl` takes arrays only, so it is called on a traced one
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), _spec(like))
    return jax.random.wrap_key_data(numbers, impl=found[0])


def _spec(keys: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(keys.shape, keys.dtype)
