"""Layers, batch normalisation and checks that the models share."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxcomp.core.errors import UserError


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
      jaxcomp.UserError: width=0 is not valid; it must be at least 1
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
      jaxcomp.UserError: dropout=1.0 is not valid; it must be in [0, 1)
    """
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise UserError(f"{name}={value} is not valid; it must be in [0, 1)")


def check_choice(valid: Collection[Any], **values: Any) -> None:
    """Refuse a value that is not one of some.

    Args:
      valid: which there are.
      **values: the values to check, by the name to show.

    Raises:
      UserError: for the first such value.

    Example:
      >>> check_choice((18, 34), depth=20)
      Traceback (most recent call last):
          ...
      jaxcomp.UserError: depth=20 is not valid; valid: 18, 34
    """
    for name, value in values.items():
        if value not in valid:
            shown = ", ".join(map(str, valid))
            raise UserError(f"{name}={value!r} is not valid; valid: {shown}")


_SIZES = {
    *("num_classes", "width", "hidden", "growth", "vocabulary", "layers"),
    *("blocks", "channels"),
}


class Model(nn.Module):
    """A network that refuses sizes below 1, and rates of dropout that are none.

    A field may have its default whatever that is, such as no hidden layer.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "dropout":
                check_rates(dropout=value)
            elif field.name in _SIZES and value != field.default:
                sizes = value if isinstance(value, Sequence) else (value,)
                for size in sizes:
                    if not isinstance(size, float):  # a factor
                        check_positive(**{field.name: size})


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
      jaxcomp.UserError: depth=27 is not 6n+4 with n >= 1; nearest valid ...
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
      jaxcomp.UserError: groups of 3 do not divide the 8 examples that a worker \
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


Initializer = nn.initializers.Initializer

# He initialisation, by the fan-in as in the paper, by the fan-out as in torchvision.
HE = nn.initializers.he_normal()
HE_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# Uniform in +-1 / sqrt(fan-in): what PyTorch gives to a layer of which a model says
# nothing. PyTorch draws biases likewise; they are 0 here.
UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
NARROW = nn.initializers.normal(0.01)


def conv(
    features: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    pad: int | None = None,
    groups: int = 1,
    bias: bool = False,
    init: Initializer = HE,
    dtype: DTypeLike = jnp.float32,
    name: str | None = None,
) -> nn.Conv:
    """A convolution, by default without bias and with He initialisation.

    The weights are drawn with variance 2 / (kernel * kernel * in_channels).

    Args:
      features: number of output channels.
      kernel: side of the square kernel.
      stride: step in both directions.
      pad: zeros on each side; by default half of an odd kernel.
      groups: parts into which the channels are divided, each with its own weights.
      bias: whether a bias is added, which begins with 0.
      init: draws the weights.
      dtype: dtype of the computation; the weights are float32.
      name: name of the submodule; flax picks one if it is None.

    References:
      He et al., Delving Deep into Rectifiers, arXiv:1502.01852, 2015.
    """
    # At stride 2, "SAME" pads an even image on one side only. Padding both sides
    # aligns the windows as PyTorch does.
    zeros = kernel // 2 if pad is None else pad
    both = (zeros, zeros)
    return nn.Conv(
        features,
        (kernel, kernel),
        (stride, stride),
        padding=(both, both),
        feature_group_count=groups,
        use_bias=bias,
        dtype=dtype,
        kernel_init=init,
        name=name,
    )


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


def mean_pool2(x: jax.Array) -> jax.Array:
    """The mean of each 2x2 square; an odd last row or column is dropped.

    Args:
      x: input [batch, height, width, channels].

    Example:
      >>> mean_pool2(jnp.arange(6.0).reshape(1, 2, 3, 1)).tolist()
      [[[[2.0]]]]
    """
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = x[:, 0:height:2] + x[:, 1:height:2]
    return (x[:, :, 0:width:2] + x[:, :, 1:width:2]) / 4


def max_pool(x: jax.Array, window: int, stride: int, pad: int = 0) -> jax.Array:
    """The maximum of each window; a window may overlap the next one.

    Args:
      x: input [batch, height, width, channels].
      window: side of the square window.
      stride: step in both directions.
      pad: places on each side that are below any number.

    Example:
      >>> max_pool(jnp.arange(9.0).reshape(1, 3, 3, 1), 3, 2, pad=1).reshape(-1)
      Array([4., 5., 7., 8.], dtype=float32)
    """
    edges = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    x = jnp.pad(x, edges, constant_values=-jnp.inf) if pad else x
    return nn.max_pool(x, (window, window), (stride, stride))


def mean_pool(x: jax.Array, side: int = 1) -> jax.Array:
    """The means of side x side parts of an image, which are as equal as they can be.

    Part i of n rows has those from floor(i n / side) to ceil((i + 1) n / side). A small
    image is so repeated: parts may overlap, and one pixel may be all of a part.

    Args:
      x: input [batch, height, width, channels].
      side: number of parts in each direction.

    Returns:
      float32 [batch, side, side, channels].

    Example:
      >>> mean_pool(jnp.arange(4.0).reshape(1, 2, 2, 1)).tolist()
      [[[[1.5]]]]
      >>> mean_pool(jnp.ones((1, 1, 1, 1)), side=2).tolist()
      [[[[1.0], [1.0]], [[1.0], [1.0]]]]
    """

    def weights(size: int) -> np.ndarray:
        place, part = np.arange(size)[None], np.arange(side)[:, None]
        first, last = part * size // side, -(-(part + 1) * size // side)
        inside = (first <= place) & (place < last)
        return (inside / inside.sum(axis=1, keepdims=True)).astype(np.float32)

    x = x.astype(jnp.float32)
    if side == 1:
        return jnp.mean(x, axis=(1, 2), keepdims=True)
    down, across = weights(x.shape[1]), weights(x.shape[2])
    return jnp.einsum("ah,bw,nhwc->nabc", down, across, x)


def flat(x: jax.Array) -> jax.Array:
    """All numbers of each example as one vector, [batch, numbers]."""
    return x.reshape(x.shape[0], -1)
