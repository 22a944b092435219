"""The built-in digits: shape, balance, the same split every time."""

import hashlib

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from jaxcomp import data


def test_shapes_types_and_statistics():
    digits = data.load("digits")
    assert digits.train_images.shape == (1437, 16, 16, 1)
    assert digits.test_images.shape == (360, 16, 16, 1)
    assert digits.train_images.dtype == digits.test_images.dtype == np.uint8
    assert digits.train_labels.dtype == digits.test_labels.dtype == np.int32
    assert digits.num_classes == 10
    scaled = digits.train_images / 255
    np.testing.assert_allclose(digits.mean, [scaled.mean()])
    np.testing.assert_allclose(digits.std, [scaled.std()])


def test_split_is_stratified_complete_and_fixed():
    digits = data.load("digits", size=8)
    originals, labels = load_digits(return_X_y=True)
    share = np.bincount(digits.test_labels) / np.bincount(labels)
    assert np.ptp(share) < 0.01

    images = np.concatenate([digits.train_images, digits.test_images])
    every = np.concatenate([digits.train_labels, digits.test_labels])
    expected = np.rint(originals * 255 / 16).astype(np.uint8)
    stored = np.column_stack([expected, labels.astype(np.uint8)])
    found = np.column_stack([images.reshape(-1, 64), every.astype(np.uint8)])
    assert sorted(found.tolist()) == sorted(stored.tolist())

    # A change of this value changes the data set, and every published number.
    checksum = hashlib.md5(digits.test_images.tobytes(), usedforsecurity=False)
    assert checksum.hexdigest() == "e92c88906012e6876a1de049a2ac397f"


@pytest.mark.parametrize("size", [7, 12, 16, 32])
def test_resize_is_bilinear(size):
    small, large = data.load("digits", size=8), data.load("digits", size=size)
    for before, after in zip(small.test_images[:20], large.test_images, strict=False):
        image = Image.fromarray(before[..., 0].astype(np.float32))
        # A transform samples as we do; Pillow's `resize` averages when it shrinks.
        scale = 8 / size
        grid = (scale, 0, 0, 0, scale, 0)
        expected = np.asarray(
            image.transform(
                (size, size), Image.Transform.AFFINE, grid, Image.Resampling.BILINEAR
            )
        )
        inner = slice(size // 8, -(size // 8) or None)
        difference = after[inner, inner, 0] - expected[inner, inner]
        assert np.abs(difference).max() <= 1.01
