"""Augmentation against a slow NumPy reference, and its laws."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.data import augment, normalize, pad_crop_flip


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def some_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def windows(image: np.ndarray, pad: int, mode: str, flip: bool) -> list[np.ndarray]:
    """Every crop that one image may become, plain ones first."""
    height, width, _ = image.shape
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode=mode)  # type: ignore[call-overload]
    corners = range(2 * pad + 1)
    plain = [padded[r : r + height, c : c + width] for r in corners for c in corners]
    return plain + [crop[:, ::-1] for crop in plain] if flip else plain


# One program each instead of one for every operation inside.
crop = jax.jit(pad_crop_flip, static_argnames=("pad", "flip", "mode"))


@pytest.mark.parametrize("mode", ["reflect", "constant"])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(
    "shape",
    [pytest.param((40, 6, 6, 3), marks=pytest.mark.slow), (40, 7, 5, 1), (3, 9, 4, 2)],
)
def test_every_output_is_a_window_of_its_own_image(
    shape: tuple[int, ...], flip: bool, mode: str
) -> None:
    images = some_images(*shape)
    out = np.asarray(crop(images, jax.random.key(1), pad=2, flip=flip, mode=mode))
    assert out.shape == shape
    assert out.dtype == np.uint8
    for image, result in zip(images, out, strict=True):
        assert any((result == w).all() for w in windows(image, 2, mode, flip))


def test_all_windows_occur_equally_often_and_half_are_mirrored() -> None:
    # One image with distinct pixels, many times: each window tells its draw.
    count, pad = 9000, 1
    image = np.arange(9, dtype=np.uint8).reshape(3, 3, 1) + 1
    out = crop(
        jnp.asarray(np.tile(image, (count, 1, 1, 1))),
        jax.random.key(2),
        pad=pad,
        mode="constant",
    )
    found = [np.asarray(out) == w for w in windows(image, pad, "constant", True)]
    times = np.array([match.all(axis=(1, 2, 3)).sum() for match in found])
    assert times.sum() == count
    # 18 outcomes: five standard errors of a binomial count.
    share = 1 / 18
    assert np.abs(times - count * share).max() < 5 * np.sqrt(count * share)


def test_same_key_same_output_other_key_other_output() -> None:
    images = jnp.asarray(some_images(16, 8, 8, 3))
    first = crop(images, jax.random.key(3))
    assert (first == crop(images, jax.random.key(3))).all()
    assert (first != crop(images, jax.random.key(4))).any()


def test_no_padding_and_no_flip_is_identity() -> None:
    images = jnp.asarray(some_images(8, 5, 7, 3))
    out = crop(images, jax.random.key(0), pad=0, flip=False)
    assert (out == images).all()
    either = np.asarray(crop(images, jax.random.key(0), pad=0))
    for before, after in zip(np.asarray(images), either, strict=True):
        assert (after == before).all() or (after == before[:, ::-1]).all()


def test_normalize_and_augment_are_the_formula() -> None:
    images = some_images(4, 6, 6, 3)
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = (images / 255 - np.array(mean)) / np.array(std)
    found = normalize(jnp.asarray(images), mean, std)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    key = jax.random.key(5)
    both = augment(jnp.asarray(images), key, mean=mean, std=std, pad=2, flip=False)
    cropped = crop(jnp.asarray(images), key, pad=2, flip=False)
    np.testing.assert_array_equal(both, normalize(cropped, mean, std))


def test_workers_under_vmap_equal_one_after_the_other() -> None:
    images = jnp.asarray(some_images(4, 8, 6, 6, 3))
    keys = jax.random.split(jax.random.key(6), 4)
    together = jax.vmap(crop)(images, keys)
    for worker in range(4):
        alone = crop(images[worker], keys[worker])
        np.testing.assert_array_equal(together[worker], alone)


def test_wrong_arguments_are_named() -> None:
    images, key = jnp.asarray(some_images(1, 4, 4, 1)), jax.random.key(0)
    with pytest.raises(ValueError, match="pad is .* at least 0, not -1"):
        pad_crop_flip(images, key, pad=-1)
    with pytest.raises(
        ValueError, match="mode is one of reflect, constant, not 'wrap'"
    ):
        pad_crop_flip(images, key, mode="wrap")  # type: ignore[arg-type]
