"""Each augmentation against NumPy: every result is one that the formula allows."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxcomp.core.errors import UserError
from jaxcomp.data import AUGMENTATIONS
from jaxcomp.data.augmentations import draw_windows, resize_windows
from jaxcomp.data.pictures import random_window
from tests.data.images import some_images


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def applied(name: str, images: np.ndarray, seed: int = 0, **arguments: Any) -> Any:
    apply = AUGMENTATIONS[name](**arguments).apply
    return np.asarray(jax.jit(apply)(jnp.asarray(images), jax.random.key(seed)))


def is_even(times: np.ndarray) -> bool:
    """Whether outcomes occur equally often: five standard errors of binomial counts."""
    count, share = times.sum(), 1 / len(times)
    return np.abs(times - count * share).max() < 5 * np.sqrt(count * share)


# --- crop and flip --------------------------------------------------------------------


def windows(image: np.ndarray, pad: int, mode: str) -> list[np.ndarray]:
    """Every crop that one image may become."""
    height, width, _ = image.shape
    around = ((pad, pad), (pad, pad), (0, 0))
    if mode == "reflect":
        padded = np.pad(image, around, mode="reflect")
    else:
        value = 127 if mode == "grey" else 0
        padded = np.pad(image, around, mode="constant", constant_values=value)
    corners = range(2 * pad + 1)
    return [padded[r : r + height, c : c + width] for r in corners for c in corners]


@pytest.mark.parametrize("mode", ["reflect", "zero", "grey"])
def test_a_crop_is_a_window_of_its_own_image(mode):
    images = some_images(40, 7, 5, 2)
    out = applied("crop", images, pad=2, mode=mode)
    assert out.shape == images.shape
    assert out.dtype == np.uint8
    for image, result in zip(images, out, strict=True):
        assert any((result == w).all() for w in windows(image, 2, mode))


NINE = np.arange(9, dtype=np.uint8).reshape(3, 3, 1) + 1  # each window tells its draw
WIDE = np.arange(12, dtype=np.uint8).reshape(3, 4, 1) + 1
ONES = np.ones((4, 3, 2), np.float32)


def without(row: int, column: int) -> np.ndarray:
    """Ones with a square of zeros, wholly inside."""
    left = ONES.copy()
    left[row : row + 2, column : column + 2] = 0
    return left


@pytest.mark.parametrize(
    ("name", "arguments", "image", "outcomes"),
    [
        ("crop", {"pad": 1, "mode": "zero"}, NINE, windows(NINE, 1, "zero")),
        (
            "crop",
            {"pad": 0, "size": 2},
            WIDE,
            [WIDE[r : r + 2, c : c + 2] for r in range(2) for c in range(3)],
        ),
        ("flip", {}, NINE, [NINE, NINE[:, ::-1]]),
        ("cutout", {"size": 2}, ONES, [without(i // 2, i % 2) for i in range(6)]),
    ],
    ids=["crop", "smaller", "flip", "cutout"],
)
def test_all_outcomes_occur_and_equally_often(name, arguments, image, outcomes):
    count = 1000 * len(outcomes)
    out = applied(name, np.tile(image, (count, 1, 1, 1)), **arguments)
    times = [(out == outcome).all((1, 2, 3)).sum() for outcome in outcomes]
    assert sum(times) == count
    assert is_even(np.array(times))


def test_a_crop_may_be_larger_than_its_image():
    larger = applied("crop", WIDE[None], pad=1, mode="zero", size=5)
    assert larger.shape == (1, 5, 5, 1)


# --- colours --------------------------------------------------------------------------

UNIT = some_images(50, 4, 4, 3).astype(np.float32) / 255


def test_brightness_scales_an_image():
    given = {"brightness": 0.4, "contrast": 0, "saturation": 0}
    factors = applied("color_jitter", UNIT + 0.1, **given) / (UNIT + 0.1)
    assert np.ptp(factors, axis=(1, 2, 3)).max() < 1e-5
    found = factors[:, 0, 0, 0]
    assert 0.6 <= found.min() < 0.75 < 1.25 < found.max() <= 1.4


@pytest.mark.parametrize("kind", ["contrast", "saturation"])
def test_contrast_and_saturation_keep_their_greys(kind):
    """They move pixels along the line to their target, all by one share."""
    given = {"brightness": 0, "contrast": 0, "saturation": 0, kind: 0.4}
    grey = UNIT @ np.array([0.299, 0.587, 0.114], np.float32)
    target = grey.mean((1, 2)) if kind == "contrast" else grey
    target = np.broadcast_to(
        target[:, None, None] if kind == "contrast" else target, grey.shape
    )[..., None]
    moved = applied("color_jitter", UNIT, **given) - UNIT
    shares = (moved * (target - UNIT)).sum((1, 2, 3)) / ((target - UNIT) ** 2).sum(
        (1, 2, 3)
    )
    expected = shares[:, None, None, None] * (target - UNIT)
    np.testing.assert_allclose(moved, expected, atol=1e-5)
    assert -0.4 <= shares.min() < -0.2 < 0.2 < shares.max() <= 0.4


def test_grey_images_take_jitter_and_no_lighting():
    grey = UNIT[..., :1]
    given = {"brightness": 0, "contrast": 0, "saturation": 0.4}
    np.testing.assert_allclose(applied("color_jitter", grey, **given), grey, atol=1e-6)
    with pytest.raises(UserError, match="images of 3 colour channels, not 1"):
        applied("pca_lighting", grey)


def test_lighting_adds_one_colour_with_the_published_covariance():
    zeros = np.zeros((20_000, 1, 2, 3), np.float32)
    out = applied("pca_lighting", zeros, strength=0.1)
    np.testing.assert_array_equal(out[:, 0, 0], out[:, 0, 1])
    values = np.array([0.2175, 0.0188, 0.0045])
    vectors = np.array(
        [
            [-0.5675, 0.7192, 0.4009],
            [-0.5808, -0.0045, -0.8140],
            [-0.5836, -0.6948, 0.4203],
        ]
    )
    expected = 0.1**2 * (vectors * values**2) @ vectors.T
    found = np.cov(out[:, 0, 0].T)
    np.testing.assert_allclose(found, expected, atol=0.05 * expected.max())


# --- random resized crops -------------------------------------------------------------


def on_device(count: int, side: tuple[int, int], *asked: float) -> np.ndarray:
    draw = jax.jit(draw_windows, static_argnums=(1, 2, 3, 4))
    return np.asarray(draw(jax.random.key(0), count, side, *asked))


def on_host(count: int, side: tuple[int, int], *asked: float) -> np.ndarray:
    """As pictures that are decoded are cut."""
    rng = np.random.default_rng(0)
    drawn = np.array([random_window(rng, *side, *asked) for _ in range(count)])
    left, top, right, bottom = drawn.T
    return np.stack([top, left, bottom - top, right - left], axis=1)


each_window = pytest.mark.parametrize("draw", [on_device, on_host])


@each_window
def test_windows_lie_inside_and_have_the_areas_and_forms_asked_for(draw):
    top, left, height, width = draw(3000, (80, 120), 0.25, 0.75).T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 80).all()
    assert (left + width <= 120).all()
    area, form = height * width / (80 * 120), width / height
    assert 0.24 < area.min() < 0.3 < 0.8 < area.max() < 0.9
    assert 0.72 < form.min() < 0.8 < 1.25 < form.max() < 1.36
    assert len(np.unique(top)) > 30


@each_window
def test_where_no_window_fits_it_is_the_largest_in_the_middle(draw):
    assert draw(5, (2, 64), 1.0, 0.75).tolist() == [[0, 30, 2, 3]] * 5


@pytest.mark.parametrize("size", [5, 9, 24])
def test_resizing_equals_pillow(size):
    images = some_images(3, 17, 24, 3)
    boxes = np.array([[0, 0, 17, 24], [3, 5, 9, 13], [16, 23, 1, 1]])
    resize = jax.jit(resize_windows, static_argnums=2)
    out = resize(images, jnp.asarray(boxes), (size, size))
    for image, result, (top, left, height, width) in zip(
        images, np.asarray(out), boxes, strict=True
    ):
        box = Image.fromarray(image[top : top + height, left : left + width])
        wanted = np.asarray(box.resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(result.astype(int) - wanted).max() <= 1


# --- edges ----------------------------------------------------------------------------

PIXEL = np.full((1, 1, 1, 3), 9, np.uint8)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("crop", {"pad": 0}),
        ("flip", {}),
        ("random_resized_crop", {"size": 1}),
    ],
)
def test_one_image_of_one_pixel(name, arguments):
    np.testing.assert_array_equal(applied(name, PIXEL, **arguments), PIXEL)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("crop", {"pad": 1}, "pad is below the 1 pixels of a side of an image, not 1"),
        ("crop", {"pad": 0, "size": 2}, "a window of 2 pixels does not fit into the 1"),
        ("cutout", {"size": 2}, "2 pixels is larger than an image of 1x1"),
        ("random_resized_crop", {"size": 2}, "size 2 is larger than an image of 1x1"),
    ],
)
def test_what_is_larger_than_an_image_is_refused(name, arguments, message):
    with pytest.raises(UserError, match=message):
        applied(name, PIXEL, **arguments)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_key_alone_decides(name):
    given = {"size": 4} if name == "random_resized_crop" else {}
    images = np.tile(UNIT, (1, 3, 3, 1))
    first = applied(name, images, 3, **given)
    np.testing.assert_array_equal(first, applied(name, images, 3, **given))
    assert (first != applied(name, images, 4, **given)).any()
