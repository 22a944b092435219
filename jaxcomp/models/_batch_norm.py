"""Batch normalisation, with statistics of parts of a batch or of all workers."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxcomp.errors import UserError

__all__ = ["LOCAL", "BatchNorm", "Statistics", "batch_norm", "check_group"]

MOMENTUM, EPSILON = 0.9, 1e-5


class Statistics(NamedTuple):
    """Over which examples the means and variances of a training step are computed."""

    axis: Any = None  # name of the workers who share them, or a tuple; None: each alone
    group: int = 0  # examples of a worker's batch with statistics of their own; 0: all


LOCAL = Statistics()


class BatchNorm(nn.Module):
    """y = scale * (x - mean) / sqrt(var + 1e-5) + bias, of each channel, in float32.

    The running averages have the momentum 0.9. With groups ("ghost" batches) they take
    the mean over the groups of their means and variances.

    Args:
      statistics: of training. The axis has to exist in training steps only.
      scale_init: draws the first scale.

    References:
      Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167, 2015. Hoffer et al.,
      Train Longer, Generalize Better, arXiv:1705.08741, 2017 (ghost).
    """

    statistics: Statistics = LOCAL
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        # Mixed with float32 statistics, half precision would be promoted, which strict
        # promotion of dtypes forbids.
        wide, channels = x.astype(jnp.float32), x.shape[-1:]
        means = self.variable("batch_stats", "mean", jnp.zeros, channels)
        variances = self.variable("batch_stats", "var", jnp.ones, channels)
        scale = self.param("scale", self.scale_init, channels, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, channels, jnp.float32)
        groups = wide[None]
        mean, var = means.value[None], variances.value[None]
        if train and not self.is_initializing():
            axis, group = self.statistics
            if group:
                check_group(group, len(x))
                groups = wide.reshape(-1, group, *x.shape[1:])
            mean, var = _moments(groups, axis)
            for running, new in ((means, mean), (variances, var)):
                new = jnp.mean(new, axis=0)
                running.value = MOMENTUM * running.value + (1 - MOMENTUM) * new
        ones = (1,) * (x.ndim - 1)
        mean, var = (m.reshape(len(m), *ones, *channels) for m in (mean, var))
        scale, bias = (p.reshape(1, *ones, *channels) for p in (scale, bias))
        y = (groups - mean) * (jax.lax.rsqrt(var + EPSILON) * scale) + bias
        return y.reshape(x.shape).astype(x.dtype)


def batch_norm(
    x: jax.Array,
    train: bool,
    statistics: Statistics = LOCAL,
    *,
    zero_scale: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Batch normalisation of each channel; returned in the dtype of x.

    Args:
      x: input [..., channels].
      train: use the statistics of the batch, not the running averages.
      statistics: over which examples they are computed.
      zero_scale: begin with scale 0, so that a residual branch begins as nothing.
      name: name of the submodule; flax picks one if it is None.
    """
    first = nn.initializers.zeros if zero_scale else nn.initializers.ones
    return BatchNorm(statistics, first, name=name)(x, train)


def check_group(group: int, examples: int) -> None:
    """Refuse groups that do not divide the examples of a batch.

    Example:
      >>> check_group(3, 8)
      Traceback (most recent call last):
      jaxcomp.errors.UserError: groups of 3 do not divide the 8 examples that a worker \
normalises at once: take 1, 2, 4 or 8
    """
    if examples % group:
        *most, last = [str(n) for n in range(1, examples + 1) if examples % n == 0]
        valid = f"{', '.join(most)} or {last}" if most else last
        raise UserError(
            f"groups of {group} do not divide the {examples} examples that a worker "
            f"normalises at once: take {valid}"
        )


def _moments(groups: jax.Array, axis: Any) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of each group and channel, over the workers if there are any.

    Args:
      groups: [groups, examples, ..., channels].
      axis: of the workers whose groups of one number are joined; None: of nobody.
    """
    within = tuple(range(1, groups.ndim - 1))
    first, second = jnp.mean(groups, within), jnp.mean(jnp.square(groups), within)
    if axis is not None:  # one message for both
        first, second = jax.lax.pmean(jnp.stack([first, second]), axis)
    # Rounding may make the difference negative.
    return first, jnp.maximum(0.0, second - jnp.square(first))
