"""Layers and checks that all models share."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.errors import UserError


def conv(
    features: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    dtype: DTypeLike = jnp.float32,
    name: str | None = None,
) -> nn.Conv:
    """A convolution without bias, with He initialisation.

    The weights are drawn with variance 2 / (kernel * kernel * in_channels).

    Args:
      features: number of output channels.
      kernel: side of the square kernel, an odd number.
      stride: step in both directions.
      dtype: dtype of the computation; the weights are float32.
      name: name of the submodule; flax picks one if it is None.

    References:
      He et al., Delving Deep into Rectifiers, arXiv:1502.01852, 2015.
    """
    # At stride 2, "SAME" pads an even image on one side only. Padding both sides
    # aligns the windows as PyTorch does.
    pad = (kernel // 2, kernel // 2)
    return nn.Conv(
        features,
        (kernel, kernel),
        (stride, stride),
        padding=(pad, pad),
        use_bias=False,
        dtype=dtype,
        kernel_init=nn.initializers.he_normal(),
        name=name,
    )


def batch_norm(
    x: jax.Array, train: bool, bn_axis: str | None, *, name: str | None = None
) -> jax.Array:
    """Batch normalisation of each channel, with momentum 0.9 and epsilon 1e-5.

    y = scale * (x - mean) / sqrt(var + 1e-5) + bias, computed in float32 and returned
    in the dtype of x.

    Args:
      x: input [..., channels].
      train: use the statistics of the batch, not the running averages.
      bn_axis: mapped axis over which the statistics are averaged, or None for the
        statistics of each worker. The axis has to exist in training steps only.
      name: name of the submodule; flax picks one if it is None.

    References:
      Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167, 2015.
    """
    norm = nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        epsilon=1e-5,
        axis_name=bn_axis,
        name=name,
    )
    # flax would mix an input in half precision with its float32 statistics, which
    # strict dtype promotion forbids.
    return norm(x.astype(jnp.float32)).astype(x.dtype)


def max_pool2(x: jax.Array) -> jax.Array:
    """The maximum of each 2x2 square; an odd last row or column is dropped.

    out[:, i, j] = max over a, b in {0, 1} of x[:, 2i + a, 2j + b]

    Args:
      x: input [batch, height, width, channels].

    Example:
      >>> max_pool2(jnp.arange(6.0).reshape(1, 2, 3, 1)).tolist()
      [[[[4.0]]]]
    """
    # On a CPU the gradient of `nn.max_pool` takes ten times as long. Equal maxima share
    # the gradient here; after a ReLU they are zeros, which receive none in either way.
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])


def check_images(images: jax.Array, min_size: int = 1) -> None:
    """Refuse images that are not a floating-point batch in the order NHWC.

    Args:
      images: the batch to check.
      min_size: smallest height and width that the model can process.

    Raises:
      UserError: says the shape or dtype and what is valid.
    """
    if images.ndim != 4 or min(images.shape[1:3]) < min_size:
        raise UserError(
            f"images have shape {images.shape}; valid is [batch, height, width, "
            f"channels] with height and width of at least {min_size}"
        )
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise UserError(
            f"images have dtype {images.dtype}; valid is a floating type such as "
            "float32"
        )


def check_positive(**values: int) -> None:
    """Refuse a value below 1.

    Args:
      **values: the values to check, by the name to show.

    Raises:
      UserError: for the first such value.

    Example:
      >>> check_positive(width=0)
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: width=0 is not valid; it must be at least 1
    """
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name}={value} is not valid; it must be at least 1")


def check_rates(**values: float) -> None:
    """Refuse a probability of dropout that is not in [0, 1).

    Args:
      **values: the values to check, by the name to show.

    Raises:
      UserError: for the first such value.

    Example:
      >>> check_rates(dropout=1.0)
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: dropout=1.0 is not valid; it must be in [0, 1)
    """
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise UserError(f"{name}={value} is not valid; it must be in [0, 1)")


def blocks(depth: int, offset: int, width: int = 1) -> list[dict[str, Any]]:
    """The arguments of the blocks of a network for CIFAR.

    The network has three stages of n blocks each, with 16, 32 and 64 channels times the
    width. The first block of the last two stages has stride 2.

    Args:
      depth: number of weighted layers, 6n + offset.
      offset: number of weighted layers outside the blocks.
      width: factor on the number of channels.

    Returns:
      For each block its features, stride and name.

    Raises:
      UserError: no n of at least 1 gives this depth.

    Example:
      >>> blocks(14, offset=2)[2]
      {'features': 32, 'stride': 2, 'name': 'stage2_block1'}
      >>> blocks(27, offset=4)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: depth=27 is not 6n+4 with n >= 1; nearest valid ...
    """
    per_stage, rest = divmod(depth - offset, 6)
    if rest or per_stage < 1:
        nearest = sorted({6 * max(n, 1) + offset for n in (per_stage, per_stage + 1)})
        raise UserError(
            f"depth={depth} is not 6n+{offset} with n >= 1; "
            f"nearest valid depths: {', '.join(map(str, nearest))}"
        )
    return [
        {
            "features": features * width,
            "stride": 2 if stage > 1 and block == 1 else 1,
            "name": f"stage{stage}_block{block}",
        }
        for stage, features in ((1, 16), (2, 32), (3, 64))
        for block in range(1, per_stage + 1)
    ]
