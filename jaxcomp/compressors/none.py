"""No compression, for baselines and for the small tensors of a model."""

import jax.numpy as jnp

from jaxcomp.compressors._kit.making import compressor
from jaxcomp.core.coding.payloads import Dense
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec, State


@method()
def none(name: str) -> Compressor:
    """Send every element as it is: C(x) = x.

    Example:
      >>> import jax.numpy as jnp
      >>> c = none()
      >>> x = jnp.arange(3.0)
      >>> payload, _ = c.compress(x, (), None)
      >>> c.decompress(payload, x)
      Array([0., 1., 2.], dtype=float32)
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Dense, State]:
        return Dense(x), state

    def decompress(payload: Dense, spec: Spec) -> Array:
        return payload.values

    def clear(x: Array, payload: Dense) -> Array:
        return jnp.where(payload.values != 0, 0, x)

    return compressor(
        name,
        compress,
        decompress,
        contraction=lambda spec: 1.0,
        unbiased=True,
        aligned=True,
        clear=clear,
    )
