"""Trust ratios: steps as long as a share of each tensor's own length."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.base import Array, Tree
from jaxcomp.scope import which_fit
from jaxcomp.trees import norms

__all__ = ["KERNELS", "add_decay_with_trust", "scale_by_trust"]

KERNELS = "ndim>=2"  # biases and the scales of normalisation layers are not adapted


def scale_by_trust(adapt: str = KERNELS) -> optax.GradientTransformation:
    """Scale the update u of each tensor w by |w| / |u|, as LAMB does.

    Args:
      adapt: which tensors, as a pattern of `policy`; others stay as they are, and so do
        those of which w or u is zero.

    Example:
      >>> link = scale_by_trust()
      >>> w, u = jnp.full((1, 2), 3.0), jnp.array([[4.0, 0.0]])
      >>> link.update(u, link.init(w), w)[0].round(4)
      Array([[4.2426, 0.    ]], dtype=float32)
    """

    def scaled(updates: Tree, params: Any) -> Tree:
        return _adapted(updates, params, adapt, norms(params), norms(updates))

    return optax.stateless(scaled)


def add_decay_with_trust(
    weight_decay: float, decays: Any, trust: float, adapt: str = KERNELS
) -> optax.GradientTransformation:
    """Add decay to each gradient, and scale it as LARS does.

        r (g + weight_decay w)  with  r = trust |w| / (|g| + weight_decay |w|)

    Args:
      weight_decay: factor on the weights.
      decays: function from the parameters to whether each of them decays.
      trust: length of a step at a rate of 1, over that of the tensor.
      adapt: as in `scale_by_trust`; for others r is 1.

    Example:
      >>> link = add_decay_with_trust(0.5, lambda w: True, trust=0.1)
      >>> w, g = jnp.array([[2.0, 0.0]]), jnp.array([[3.0, 0.0]])
      >>> link.update(g, link.init(w), w)[0]
      Array([[0.2, 0. ]], dtype=float32)
    """

    def scaled(updates: Tree, params: Any) -> Tree:
        factors = [weight_decay * d for d in jax.tree.leaves(decays(params))]
        structure = jax.tree.structure(params)
        decayed = jax.tree.map(
            lambda g, w, f: g + f * w if f else g,
            *(updates, params, jax.tree.unflatten(structure, factors)),
        )
        lengths = norms(params)
        each = zip(norms(updates), lengths, factors, strict=True)
        below = [g + f * w for g, w, f in each]
        return _adapted(decayed, params, adapt, [trust * w for w in lengths], below)

    return optax.stateless(scaled)


def _adapted(
    updates: Tree, params: Tree, adapt: str, above: list[Array], below: list[Array]
) -> Tree:
    """Scale adapted tensors by above / below, or by 1 where one of them is zero."""

    def scaled(update: Array, is_adapted: bool, top: Array, bottom: Array) -> Array:
        if not is_adapted:
            return update
        is_zero = (top == 0) | (bottom == 0)
        ratio = jnp.where(is_zero, 1.0, top / jnp.where(is_zero, 1.0, bottom))
        return ratio.astype(update.dtype) * update

    structure = jax.tree.structure(params)
    lengths = (jax.tree.unflatten(structure, x) for x in (above, below))
    return jax.tree.map(scaled, updates, which_fit(adapt, params), *lengths)
