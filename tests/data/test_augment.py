"""Composition: the keys, the order, normalisation and what people write themselves."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.specs import SpecError
from jaxcomp.data import AUGMENTATIONS, Augmentation, make_augment, normalize
from tests.data.images import some_images

COLOURS: Any = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
HERE = "tests.data.test_augment"


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def darker(by: int = 2):
    """Somebody's own, as a plain function."""
    return lambda images, key: images // by


def doubled() -> Augmentation:
    """Somebody's own, of pixels from 0 to 1."""
    return Augmentation("doubled", lambda images, key: 2 * images, needs="unit")


def nothing() -> int:
    return 3


def formula(images: np.ndarray) -> np.ndarray:
    mean, std = np.array(COLOURS["mean"]), np.array(COLOURS["std"])
    return (images / 255 - mean) / std


def test_normalize_is_the_formula():
    images = some_images(4, 6, 6, 3)
    found = normalize(jnp.asarray(images), **COLOURS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, formula(images), rtol=1e-5, atol=1e-6)
    plain = jax.jit(make_augment("", **COLOURS))(jnp.asarray(images), jax.random.key(0))
    np.testing.assert_array_equal(plain, found)


def test_each_link_has_the_key_of_its_place_and_none_shifts_the_others():
    """So `crop` draws the same windows, whether a flip follows or not."""
    images, key = jnp.asarray(some_images(8, 6, 6, 3)), jax.random.key(5)
    keys = jax.random.split(key)
    crop, flip = AUGMENTATIONS["crop"](pad=2), AUGMENTATIONS["flip"]()
    cropped = crop.apply(images, keys[0])
    alone = jax.jit(make_augment("crop(pad=2)", **COLOURS))(images, key)
    np.testing.assert_array_equal(alone, normalize(cropped, **COLOURS))
    both = jax.jit(make_augment("crop(pad=2) | flip", **COLOURS))(images, key)
    expected = normalize(flip.apply(cropped, keys[1]), **COLOURS)
    np.testing.assert_allclose(both, expected, rtol=1e-6)


def test_pixels_are_scaled_as_soon_as_a_link_needs_it_and_once():
    images, key = some_images(4, 8, 8, 3), jax.random.key(0)
    own = jax.jit(make_augment(f"{HERE}:darker(by=3) | {HERE}:doubled", **COLOURS))
    found = own(jnp.asarray(images), key)
    expected = formula(2.0 * (images // 3))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    cut = jax.jit(make_augment("cutout(size=3)", **COLOURS))(images, key)
    zeros = np.asarray(cut == 0).all(axis=-1).sum(axis=(1, 2))
    assert (zeros >= 9).all()  # the mean, and not black
    late = jax.jit(make_augment("cutout(size=3) | flip", **COLOURS))(images, key)
    assert late.dtype == jnp.float32


def test_workers_under_vmap_equal_one_after_the_other():
    spec = "crop(pad=2) | flip | color_jitter | pca_lighting | cutout(size=2)"
    augment = jax.jit(make_augment(spec, **COLOURS))
    images = jnp.asarray(some_images(4, 8, 6, 6, 3))
    keys = jax.random.split(jax.random.key(6), 4)
    together = jax.jit(jax.vmap(augment))(images, keys)
    for worker in range(4):
        alone = augment(images[worker], keys[worker])
        np.testing.assert_allclose(together[worker], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("crop | flap", "unknown augmentation 'flap'. Did you mean 'flip'"),
        ("crop(pad=-1)", "pad is a whole number of at least 0, not -1"),
        ("crop(mode=wrap)", "mode is one of grey, reflect, zero, not 'wrap'"),
        ("flip |", "not a spec"),
        ("cutout | color_jitter", r"let it come first: color_jitter\(.*\) \| cutout"),
        (f"flip | {HERE}:nothing", "makes no Augmentation.* of type int"),
        (f"flip | {HERE}:lacking", "has no 'lacking'"),
        ("random_resized_crop", "needs size"),
    ],
)
def test_wrong_compositions_are_refused(spec, message):
    with pytest.raises(SpecError, match=message):
        make_augment(spec, **COLOURS)
