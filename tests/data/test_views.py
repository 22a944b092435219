"""What an evaluation shows, against NumPy and Pillow."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxcomp.core.errors import UserError
from jaxcomp.data import make_views
from jaxcomp.training.tasks.classification import classifier
from tests.data.images import some_images

HERE = "tests.data.test_views"


def rows_of_two() -> Any:
    """Somebody's own: the upper and the lower half."""
    return lambda images: jnp.stack([images[:, :4], images[:, 4:]], axis=1)


def nothing() -> int:
    return 3


@pytest.mark.parametrize("shape", [(2, 12, 9, 3), (1, 7, 15, 1)])
def test_the_middle_of_the_resized_image_as_pillow_resizes(shape):
    images = some_images(*shape)
    found = jax.jit(make_views("center_crop(size=4, resize=6)"))(images)
    assert found.shape == (shape[0], 1, 4, 4, shape[-1])
    height, width = shape[1:3]
    new = round(width * 6 / min(shape[1:3])), round(height * 6 / min(shape[1:3]))
    left, top = (new[0] - 4) // 2, (new[1] - 4) // 2
    for image, result in zip(images, np.asarray(found), strict=True):
        resized = Image.fromarray(image.squeeze()).resize(
            new, Image.Resampling.BILINEAR
        )
        wanted = np.asarray(resized).reshape(new[1], new[0], -1)
        wanted = wanted[top : top + 4, left : left + 4].astype(int)
        # Pillow rounds to bytes between its two passes.
        assert np.abs(result[0] - wanted).max() <= 2


def test_ten_views_are_the_corners_the_middle_and_their_mirror_images():
    images = some_images(3, 6, 8, 2)
    found = np.asarray(make_views("ten_crop(size=4)")(jnp.asarray(images)))
    corners = [(0, 0), (0, 4), (2, 0), (2, 4), (1, 2)]
    for i, (row, column) in enumerate(corners):
        wanted = images[:, row : row + 4, column : column + 4]
        np.testing.assert_array_equal(found[:, i], wanted)
        np.testing.assert_array_equal(found[:, 5 + i], wanted[:, :, ::-1])


def test_logits_are_averaged_over_the_views():
    class Linear(nn.Module):
        @nn.compact
        def __call__(self, images: jax.Array, train: bool) -> jax.Array:
            return nn.Dense(3)(images.reshape(len(images), -1))

    images, labels = some_images(4, 8, 4, 1), np.array([0, 1, 2, 0], np.int32)
    task = classifier(
        Linear(),
        (images[:, :4], labels),
        (images, labels),
        lambda epoch: np.arange(4).reshape(1, 1, 4),
        augment=lambda images, key: images.astype(jnp.float32) / 255,
        normalize=lambda images: images.astype(jnp.float32) / 255,
        views=make_views(f"{HERE}:rows_of_two"),
    )
    variables = task.init(jax.random.key(0))
    sums, _ = task.score(variables, {}, (jnp.asarray(images), labels), jnp.ones(4))
    kernel, bias = (variables.params["Dense_0"][name] for name in ("kernel", "bias"))
    halves = (images[:, :4].reshape(4, -1), images[:, 4:].reshape(4, -1))
    found = [half / 255 @ np.asarray(kernel) + np.asarray(bias) for half in halves]
    logits = np.mean(found, axis=0)
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    losses = -np.log(shifted[np.arange(4), labels] / shifted.sum(1))
    np.testing.assert_allclose(sums.loss, losses.sum(), rtol=1e-5)
    assert sums.examples == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ten_crop", "needs size"),
        ("ten_crop(5)", "size 5 is larger than an image of 4x6"),
        ("center_crop(size=9, resize=8)", "at most the 8 pixels of the resized image"),
        ("middle", "unknown eval_view 'middle'"),
        (f"{HERE}:nothing", "makes no function, but a int"),
    ],
)
def test_wrong_views_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        make_views(spec)(jnp.ones((1, 4, 6, 1)))
