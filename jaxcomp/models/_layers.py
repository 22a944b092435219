"""Layers and checks that every model family shares."""

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
    """Returns a bias-free convolution with He initialisation.

    The weights are drawn with variance 2 / (kernel * kernel * in_channels).

    Args:
      features: number of output channels.
      kernel: side of the square kernel, an odd number.
      stride: step in both directions.
      dtype: type the convolution computes in; the weights are float32.
      name: name of the submodule; flax picks one if it is None.

    K. He et al., "Delving Deep into Rectifiers",
    https://arxiv.org/abs/1502.01852, 2015.
    """
    # At stride 2, "SAME" pads an even image on one side only. Padding both sides
    # gives the alignment of PyTorch.
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
    """Returns `x` normalised per channel, with momentum 0.9 and epsilon 1e-5.

    y = scale * (x - mean) / sqrt(var + 1e-5) + bias, computed in float32.

    Args:
      x: input [..., channels].
      train: use the statistics of the batch, not the running averages.
      bn_axis: mapped axis to average the statistics over, or None for local
        statistics. flax ignores it in evaluation and while initialising, so
        the axis has to exist only for a training step.
      name: name of the submodule; flax picks one if it is None.

    S. Ioffe and C. Szegedy, "Batch Normalization",
    https://arxiv.org/abs/1502.03167, 2015.
    """
    norm = nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        epsilon=1e-5,
        axis_name=bn_axis,
        name=name,
    )
    # flax mixes a half-precision input with its float32 statistics, which strict
    # promotion forbids.
    return norm(x.astype(jnp.float32))


def max_pool2(x: jax.Array) -> jax.Array:
    """Returns the maximum of each 2x2 square, dropping an odd last row or column.

    out[:, i, j] = max over a, b in {0, 1} of x[:, 2i + a, 2j + b]

    Args:
      x: input [batch, height, width, channels].

    >>> max_pool2(jnp.arange(6.0).reshape(1, 2, 3, 1)).tolist()
    [[[[4.0]]]]
    """
    # On a CPU the gradient of `nn.max_pool` is ten times slower. A tie shares
    # the gradient; after a ReLU ties are zeros, which receive none either way.
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])


def check_images(images: jax.Array, min_size: int = 1) -> None:
    """Raises ValueError unless `images` is a floating NHWC batch.

    Args:
      images: the batch to check.
      min_size: smallest height and width that the model can process.
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
    """Raises ValueError for the first named value below 1.

    Args:
      **values: the values to check, by the name to show.

    >>> check_positive(width=0)
    Traceback (most recent call last):
        ...
    jaxcomp.errors.UserError: width=0 is not valid; it must be at least 1
    """
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name}={value} is not valid; it must be at least 1")


def blocks_per_stage(depth: int, offset: int) -> int:
    """Returns n of a three-stage network with depth = 6n + offset.

    Args:
      depth: number of weighted layers.
      offset: layers outside the blocks.

    Raises:
      UserError: if no n of at least 1 gives this depth.

    >>> blocks_per_stage(20, offset=2)
    3
    >>> blocks_per_stage(27, offset=4)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    jaxcomp.errors.UserError: depth=27 is not 6n+4 with n >= 1; nearest valid ...
    """
    blocks, rest = divmod(depth - offset, 6)
    if rest == 0 and blocks >= 1:
        return blocks
    nearest = sorted({6 * max(n, 1) + offset for n in (blocks, blocks + 1)})
    raise UserError(
        f"depth={depth} is not 6n+{offset} with n >= 1; "
        f"nearest valid depths: {', '.join(map(str, nearest))}"
    )
