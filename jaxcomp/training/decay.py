"""Weight decay: which parameters have it, and the one place where it is added."""

from typing import Any

import jax
import optax

from jaxcomp.base import Tree
from jaxcomp.errors import UserError
from jaxcomp.scope import leaves_of, which_fit

__all__ = ["add_decay", "check_decay", "decaying"]

# Biases and the scales of normalisation layers have one axis.
_NAMED = {"all": "*", "kernels": "ndim>=2"}


def decaying(decay: str, params: Tree) -> Tree:
    """For each parameter, whether it decays.

    Args:
      decay: "all"; "kernels", which have two axes or more; or a pattern as in `policy`.
      params: of the model.

    Example:
      >>> import jax.numpy as jnp
      >>> decaying("kernels", {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})
      {'bias': False, 'kernel': True}
    """
    return which_fit(_NAMED.get(decay, decay), params)


def add_decay(weight_decay: float, decay: str = "all") -> optax.GradientTransformation:
    """Add weight_decay w to the updates of the parameters that decay.

    Args:
      weight_decay: factor on the parameters; 0 adds nothing.
      decay: which of them, as in `decaying`.

    Example:
      >>> import jax.numpy as jnp
      >>> w = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
      >>> link = add_decay(0.5, "kernels")
      >>> link.update(jax.tree.map(jnp.zeros_like, w), link.init(w), w)[0]
      {'bias': Array([0., 0.], dtype=float32), 'kernel': Array([[0.5, 0.5]], ...)}
    """
    if not weight_decay:
        return optax.identity()

    def added(updates: Tree, params: Any) -> Tree:
        return jax.tree.map(
            lambda u, w, decays: u + weight_decay * w if decays else u,
            *(updates, params, decaying(decay, params)),
        )

    return optax.stateless(added)


def check_decay(config: Any, params: Tree) -> None:
    """Refuse a pattern that fits no parameter.

    Args:
      config: its decay and weight_decay.
      params: of the model, or their shapes.
    """
    fits = jax.tree.leaves(decaying(config.decay, params))
    if config.weight_decay and not any(fits):
        names = [leaf.path for leaf in leaves_of(params)]
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        raise UserError(
            f"decay {config.decay!r} fits no parameter, and weight_decay is "
            f"{config.weight_decay}. The parameters are {shown}. Write 'all', "
            "'kernels' or a pattern such as 'Conv*/kernel'"
        )
