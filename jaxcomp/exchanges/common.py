"""What several exchanges need: the report of one step, and casting back."""

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Info, Payload, Spec, Tree, spec_of

__all__ = ["measure", "narrow", "squared_norm"]


def squared_norm(tree: Tree) -> Array:
    """Sum of the squares of all elements, in float32.

    Example:
        >>> squared_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0])})
        Array(25., dtype=float32)
    """
    leaves = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return sum(leaves, start=jnp.float32(0))


def measure(
    given: Tree, sent: Tree, codec: Compressor | None = None, payload: Payload = None
) -> Info:
    """`Info` of one exchange: |given - sent|^2 / |given|^2, 0 for a zero tree.

    Args:
      given: what the exchange was given.
      sent: what it charges to this worker.
      codec: the compressor whose figures of `payload` are reported too.
      payload: of this worker.
    """
    error = squared_norm(jax.tree.map(lambda g, s: g - s, given, sent))
    norm = squared_norm(given)
    relative = error / jnp.where(norm == 0, 1.0, norm)
    spec = spec_of(given)
    figures = codec.figures if codec else ()
    extra = {figure.name: figure.of(payload, spec) for figure in figures}
    return Info(gradient_error=relative, residual_norm=jnp.float32(0), extra=extra)


def narrow(tree: Tree, spec: Spec) -> Tree:
    """Cast sums from at least float32 back to the dtypes of the spec."""
    return jax.tree.map(lambda x, s: x.astype(s.dtype), tree, spec)
