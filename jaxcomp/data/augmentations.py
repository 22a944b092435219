"""Augmentations on the device, by name, and the function that applies them."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import (
    Count,
    Range,
    SpecError,
    build,
    importable,
    method,
    pieces,
)

# How pixels are given: as they are stored (uint8), as float32 from 0 to 1, or
# normalised per channel. An augmentation of stored images works on the others too.
Stage = Literal["stored", "unit", "normal"]


class Augmentation(NamedTuple):
    """A random change of a batch of images."""

    name: str  # the spec that builds it
    # (images [N, H, W, C], key) -> images [N, H', W', C] of the same dtype
    apply: Callable[[jax.Array, jax.Array], jax.Array]
    needs: Stage = "stored"
    # (side) -> the same with results of another size; None for one that keeps the size
    sized: Callable[[int], "Augmentation"] | None = None


def check_channels(name: str, images: jax.Array, valid: tuple[int, ...]) -> None:
    """Refuse images whose colours an augmentation does not know.

    Example:
      >>> check_channels("flip", jax.numpy.ones((1, 4, 4, 3)), (1, 3))
    """
    channels = images.shape[-1]
    if channels not in valid:
        wanted = " or ".join(map(str, valid))
        message = f"works on images of {wanted} colour channels, not {channels}"
        raise UserError(f"{name} {message}")


Strength = Annotated[float, Range(least=0)]
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601
# Eigenvalues and eigenvectors (columns) of the colours of ImageNet's pixels.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)


@method("brightness", "contrast", "saturation")
def color_jitter(
    name: str,
    brightness: Strength = 0.4,
    contrast: Strength = 0.4,
    saturation: Strength = 0.4,
) -> Augmentation:
    """Draw each image towards, or away from, black, its mean grey and its own greys.

    x + a (t - x), with a uniform in [-strength, strength], for three targets t: 0
    (brightness), the mean grey of the image (contrast), the grey of each pixel
    (saturation). Each image takes the three in a random order of its own.

    Args:
      brightness: strength of the first.
      contrast: of the second.
      saturation: of the third.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.full((1, 2, 2, 3), 0.5)
      >>> jitter = color_jitter(brightness=0.1, contrast=0, saturation=0)
      >>> jittered = jax.jit(jitter.apply)(images, jax.random.key(0))
      >>> bool(abs(jittered - 0.5).max() <= 0.05)
      True

    References:
      Howard, "Some Improvements on Deep Convolutional Neural Network Based Image
      Classification", https://arxiv.org/abs/1312.5402, 2013.
    """
    most = (brightness, contrast, saturation)

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        check_channels(name, images, (1, 3))
        key_order, key_strength = jax.random.split(key)
        slots = jnp.broadcast_to(jnp.arange(3), (len(images), 3))
        order = jax.random.permutation(key_order, slots, axis=1, independent=True)
        drawn = jax.random.uniform(key_strength, (len(images), 3), minval=-1.0)
        strengths = drawn * jnp.asarray(most, jnp.float32)[None]
        for slot in range(3):
            which = order[:, slot, None]
            strength = jnp.take_along_axis(strengths, which, axis=1)[..., None, None]
            kind = which[..., None, None]
            grey = _grey(images)
            mean = jnp.mean(grey, axis=(1, 2, 3), keepdims=True)
            target = jnp.where(kind == 0, 0.0, jnp.where(kind == 1, mean, grey))
            images = images + strength * (target - images)
        return images

    return Augmentation(name, apply, needs="unit")


@method("strength")
def pca_lighting(name: str, strength: Strength = 0.1) -> Augmentation:
    """Add to all pixels of an image a random colour along those of ImageNet.

    x + sum_i a_i l_i v_i with a_i ~ N(0, strength^2), and l_i, v_i the eigenvalues and
    eigenvectors of the covariance of ImageNet's pixels.

    Args:
      strength: the standard deviation of a_i.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.zeros((1, 2, 2, 3))
      >>> lighting = jax.jit(pca_lighting(strength=0).apply)
      >>> lighting(images, jax.random.key(0)).max().item()
      0.0

    References:
      Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional
      Neural Networks", section 4.1, 2012.
    """
    scaled = [
        [v * w for v, w in zip(r, _EIGENVALUES, strict=True)] for r in _EIGENVECTORS
    ]

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        check_channels(name, images, (3,))
        drawn = strength * jax.random.normal(key, (len(images), 3))
        colour = jnp.sum(jnp.asarray(scaled)[None] * drawn[:, None], axis=-1)
        return images + colour[:, None, None]

    return Augmentation(name, apply, needs="unit")


def _grey(images: jax.Array) -> jax.Array:
    """The luminance of each pixel, [N, H, W, 1]; a single channel is its own."""
    if images.shape[-1] == 1:
        return images
    weights = jnp.asarray(_LUMINANCE, images.dtype)[None, None, None]
    return jnp.sum(images * weights, axis=-1, keepdims=True)


PadMode = Literal["grey", "reflect", "zero"]
_GREY = 127
_PADDINGS = {
    "grey": {"mode": "constant", "constant_values": _GREY},
    "reflect": {"mode": "reflect"},
    "zero": {"mode": "constant"},
}


@method("pad")
def crop(
    name: str,
    pad: Annotated[int, Range(least=0)] = 4,
    mode: PadMode = "reflect",
    size: Annotated[int, Range(least=0)] = 0,
) -> Augmentation:
    """Pad every side, and cut a random window of the old size, or of another one.

    The corner of the window is drawn for each image, uniformly over all positions: of a
    window of the old size there are (2 pad + 1)^2.

    Args:
      pad: pixels added on each side.
      mode: the padding: "reflect" (mirrored without the edge), "zero" (black where
        images are not normalised, the mean where they are) or "grey" (127).
      size: of a side of the window, in pixels; 0 for the old size.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((2, 5, 5, 1), jnp.uint8)
      >>> jax.jit(crop(pad=2).apply)(images, jax.random.key(0)).shape
      (2, 5, 5, 1)

    References:
      He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition",
      section 4.2, https://arxiv.org/abs/1512.03385, 2015.
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        count, height, width, _ = images.shape
        side = min(height, width)
        if pad and pad >= side:
            message = f"pad is below the {side} pixels of a side of an image, not {pad}"
            raise UserError(message)
        if mode == "grey" and images.dtype != jnp.uint8:
            raise UserError("mode 'grey' pads stored images: let crop come earlier")
        if size > side + 2 * pad:
            message = (
                f"a window of {size} pixels does not fit into the {side + 2 * pad}"
            )
            raise UserError(f"{message} of an image and its padding")
        old, new = (height, width), (size or height, size or width)
        places = [o + 2 * pad - n + 1 for o, n in zip(old, new, strict=True)]
        corner = jax.random.randint(key, (count, 2), 0, jnp.array([places]))
        around = ((0, 0), (pad, pad), (pad, pad), (0, 0))
        padded = jnp.pad(images, around, **_PADDINGS[mode])
        rows = corner[:, :1] + jnp.arange(new[0])[None]
        columns = corner[:, 1:] + jnp.arange(new[1])[None]
        # Median times of alternatives for 128 uint8 images of 32x32x3 under jit on 2
        # CPU cores: this gather 0.30 ms, vmapped dynamic_slice 0.41, one-hot matmuls
        # 0.87, a select over all shifts 7.4. A loop over images takes 0.24 but would
        # process one image at a time on an accelerator.
        image = jnp.arange(count)[:, None, None]
        return padded[image, rows[:, :, None], columns[:, None, :]]

    return Augmentation(name, apply)


@method("size")
def cutout(name: str, size: Count = 8) -> Augmentation:
    """Set a random square of each image to 0, the mean of normalised images.

    The square lies wholly inside the image; all its places are equally likely. In the
    paper its centre is inside, and the square may reach over the border.

    Args:
      size: of a side of the square, in pixels.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((1, 4, 4, 1))
      >>> jax.jit(cutout(size=3).apply)(images, jax.random.key(0)).sum().item()
      7.0

    References:
      DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks
      with Cutout", https://arxiv.org/abs/1708.04552, 2017.
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        count, height, width, _ = images.shape
        if size > min(height, width):
            message = f"a square of {size} pixels is larger than an image"
            raise UserError(f"{message} of {height}x{width}")
        keys = jax.random.split(key)
        top = jax.random.randint(keys[0], (count, 1), 0, height - size + 1)
        left = jax.random.randint(keys[1], (count, 1), 0, width - size + 1)
        rows, columns = jnp.arange(height)[None] - top, jnp.arange(width)[None] - left
        in_rows = (rows >= 0) & (rows < size)
        in_columns = (columns >= 0) & (columns < size)
        inside = in_rows[:, :, None, None] & in_columns[:, None, :, None]
        return jnp.where(inside, jnp.zeros((), images.dtype), images)

    return Augmentation(name, apply, needs="normal")


@method()
def flip(name: str) -> Augmentation:
    """Mirror each image left to right with probability 1/2; not for digits or text.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((2, 5, 5, 1), jnp.uint8)
      >>> jax.jit(flip().apply)(images, jax.random.key(0)).shape
      (2, 5, 5, 1)
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        mirrored = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
        return jnp.where(mirrored, images[:, :, ::-1], images)

    return Augmentation(name, apply)


Share = Annotated[float, Range(above=0, most=1)]
TRIES = 10  # as everybody does; then the largest window in the middle


@method("size", "scale_min")
def random_resized_crop(
    name: str, size: Count, scale_min: Share = 0.08, ratio: Share = 0.75
) -> Augmentation:
    """Cut a window of random area and form from each image, and resize it.

    The area is uniform in [scale_min, 1] of the image, and the logarithm of width /
    height is uniform between those of ratio and 1 / ratio. The window is resized with a
    triangle filter, which averages where it shrinks, as Pillow's bilinear filter does.

    Args:
      size: of a side of the results, in pixels.
      scale_min: the least share of the image's area.
      ratio: width / height of the narrowest window.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((2, 8, 8, 3), jnp.uint8)
      >>> jax.jit(random_resized_crop(size=4).apply)(images, jax.random.key(0)).shape
      (2, 4, 4, 3)

    References:
      Szegedy et al., "Going Deeper with Convolutions", section 6,
      https://arxiv.org/abs/1409.4842, 2014.
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        count, height, width, _ = images.shape
        if size > min(height, width):
            message = f"size {size} is larger than an image of {height}x{width}"
            raise UserError(message)
        windows = draw_windows(key, count, (height, width), scale_min, ratio)
        return resize_windows(images, windows, (size, size))

    def sized(side: int) -> Augmentation:
        return random_resized_crop(size=side, scale_min=scale_min, ratio=ratio)

    return Augmentation(name, apply, sized=sized)


def draw_windows(
    key: jax.Array, count: int, side: tuple[int, int], scale_min: float, ratio: float
) -> jax.Array:
    """Random windows of an image.

    Args:
      key: of all of them.
      count: of windows.
      side: height and width of the image.
      scale_min: the least share of its area.
      ratio: width / height of the narrowest one.

    Returns:
      int32 [count, 4]: top, left, height and width.

    Example:
      >>> draw = jax.jit(lambda key: draw_windows(key, 2, (1, 1), 0.5, 0.75))
      >>> draw(jax.random.key(0)).tolist()
      [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    height, width = side
    keys = jax.random.split(key, 3)
    shape, widest = (count, TRIES), -math.log(ratio)
    area = jax.random.uniform(keys[0], shape, minval=scale_min) * (height * width)
    form = jnp.exp(jax.random.uniform(keys[1], shape, minval=-widest, maxval=widest))
    sizes = jnp.stack([jnp.sqrt(area / form), jnp.sqrt(area * form)], axis=-1)
    sizes = jnp.round(sizes).astype(jnp.int32)
    limit = jnp.asarray(side, jnp.int32)
    fits = jnp.all((sizes > 0) & (sizes <= limit[None, None]), axis=-1)
    first = jnp.argmax(fits, axis=1)[:, None, None]
    chosen = jnp.take_along_axis(sizes, first, axis=1)[:, 0]
    # The largest window of a valid form, where no try fits.
    whole = min(height, round(width / ratio)), min(width, round(height / ratio))
    found = jnp.any(fits, axis=1)[:, None]
    chosen = jnp.where(found, chosen, jnp.asarray(whole, jnp.int32)[None])
    room = limit[None] - chosen
    drawn = jax.random.uniform(keys[2], (count, 2)) * (room + 1).astype(jnp.float32)
    corner = jnp.minimum(drawn.astype(jnp.int32), room)
    return jnp.concatenate([jnp.where(found, corner, room // 2), chosen], axis=1)


def resize_windows(
    images: jax.Array, windows: jax.Array, new: tuple[int, int]
) -> jax.Array:
    """Resize a window of each image to one size, bilinearly and averaging.

    Args:
      images: [N, H, W, C].
      windows: int [N, 4]: top, left, height and width, inside the image.
      new: height and width of the results.

    Example:
      >>> images = jnp.arange(4.0).reshape(1, 2, 2, 1)
      >>> resize_windows(images, jnp.array([[0, 0, 2, 2]]), (1, 1)).item()
      1.5
    """
    rows = _weights(windows[:, 0], windows[:, 2], images.shape[1], new[0])
    columns = _weights(windows[:, 1], windows[:, 3], images.shape[2], new[1])
    resized = jnp.einsum(
        "nyh,nxw,nhwc->nyxc",
        rows,
        columns,
        images.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    if jnp.issubdtype(images.dtype, jnp.integer):
        resized = jnp.clip(jnp.round(resized), 0, jnp.iinfo(images.dtype).max)
    return resized.astype(images.dtype)


def _weights(start: jax.Array, length: jax.Array, old: int, new: int) -> jax.Array:
    """[N, new, old]: how much each pixel of a line counts for each of the new ones."""
    scale = length.astype(jnp.float32)[:, None, None] / new
    first = start[:, None, None]
    places = jnp.arange(old)[None, None]
    middles = jnp.arange(new, dtype=jnp.float32)[None, :, None] + 0.5
    centre = first.astype(jnp.float32) + middles * scale
    distance = jnp.abs(places.astype(jnp.float32) + 0.5 - centre)
    weights = jnp.maximum(0.0, 1.0 - distance / jnp.maximum(scale, 1.0))
    inside = (places >= first) & (places < first + length[:, None, None])
    weights = jnp.where(inside, weights, 0.0)
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


REGISTRY: dict[str, Callable[..., Augmentation]] = {
    "color_jitter": color_jitter,
    "crop": crop,
    "cutout": cutout,
    "flip": flip,
    "pca_lighting": pca_lighting,
    "random_resized_crop": random_resized_crop,
}


_STAGES = get_args(Stage)


def make_augment(
    spec: str, *, mean: Sequence[float], std: Sequence[float], size: int = 0
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Make the function that augments and normalises a training batch.

    Augmentations run from left to right. Pixels are scaled to 0..1, and then
    normalised, as soon as one of them needs it, or at the end.

    Args:
      spec: names in `augmentations.REGISTRY`, with "|" between them; "" for none. An
        import path such as "my.images:blur(size=3)" names a factory of your own. It
        returns an `Augmentation`, or a function of images as they are stored.
      mean: per channel, for pixels scaled to 0..1.
      std: per channel, for pixels scaled to 0..1.
      size: of a side of the results; 0 as they come. An augmentation that resizes, such
        as `random_resized_crop`, resizes to it. Other results are resized in the end,
        so that the sizes of augmentations are those of stored pixels.

    Returns:
      (images uint8 [N, H, W, C], key) -> float32 images.

    Raises:
      SpecError: unknown names or arguments, or an order that makes no sense.

    Example:
      >>> augment = make_augment("crop(pad=1) | flip", mean=[0.5], std=[0.5])
      >>> images = jnp.zeros((2, 8, 8, 1), jnp.uint8)
      >>> jax.jit(augment)(images, jax.random.key(0)).max().item()
      -1.0
    """
    links = [_make(piece) for piece in pieces(spec)] if spec.strip() else []
    _check_order(links)
    if size:
        links = [link.sized(size) if link.sized else link for link in links]

    def augment(images: jax.Array, key: jax.Array) -> jax.Array:
        stage = 0
        for number, link in enumerate(links):
            wanted = max(stage, _STAGES.index(link.needs))
            images = _scaled(images, stage, wanted, mean, std)
            stage = wanted
            images = link.apply(images, jax.random.split(key, len(links))[number])
        images = _scaled(images, stage, len(_STAGES) - 1, mean, std)
        return resize(images, size) if size else images

    return augment


def resize(images: jax.Array, side: int) -> jax.Array:
    """Squares of a side, bilinearly; where an image shrinks, pixels are averaged.

    Args:
      images: float32 [N, H, W, C].
      side: of the results.

    Example:
      >>> resize(jnp.arange(4.0).reshape(1, 2, 2, 1), 1).item()
      1.5
    """
    count, _, _, channels = images.shape
    shape = (count, side, side, channels)
    if images.shape == shape:
        return images
    return jax.image.resize(images, shape, "linear", antialias=True)


def normalize(
    images: jax.Array, mean: Sequence[float], std: Sequence[float]
) -> jax.Array:
    """Scale pixels per channel: y = (x / 255 - mean) / std.

    Args:
      images: uint8 [..., C].
      mean: per channel, for pixels scaled to 0..1.
      std: per channel, for pixels scaled to 0..1.

    Returns:
      float32 of the same shape.

    Example:
      >>> normalize(jnp.full((1, 1, 1), 255, jnp.uint8), [0.5], [0.25]).item()
      2.0
    """
    return _scaled(images, 0, len(_STAGES) - 1, mean, std)


def _scaled(
    images: jax.Array,
    stage: int,
    wanted: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> jax.Array:
    """Images of a later stage."""
    if stage < 1 <= wanted:
        images = images.astype(jnp.float32) / 255.0
    if stage < 2 <= wanted:
        # Explicit axes: callers may forbid implicit rank promotion.
        per_channel = (1,) * (images.ndim - 1) + (-1,)
        centre = jnp.asarray(mean, jnp.float32).reshape(per_channel)
        scale = jnp.asarray(std, jnp.float32).reshape(per_channel)
        images = (images - centre) / scale
    return images


def _make(spec: str) -> Augmentation:
    """The augmentation that a part of a composition names."""
    name, known = importable(spec, REGISTRY, "augmentation")
    made: Any = build(name, known, "augmentation")
    if isinstance(made, Augmentation):
        return made
    if callable(made):
        return Augmentation(spec, cast(Any, made))
    kind = type(made).__name__
    message = "makes no Augmentation, and no function of images and a key, but a value"
    raise SpecError(f"augmentation {spec!r} {message} of type {kind}")


def _check_order(links: Sequence[Augmentation]) -> None:
    """Refuse one that needs pixels as they were before another one."""
    for i, link in enumerate(links):
        for later in links[i + 1 :]:
            if link.needs == "normal" and later.needs == "unit":
                message = (
                    f"{link.name} works on normalised images and {later.name} on those "
                    "before: let it come first"
                )
                raise SpecError(f"{message}: {later.name} | {link.name}")
