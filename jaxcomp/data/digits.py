"""The 1797 handwritten digits of scikit-learn, which need no download."""

import functools

import numpy as np

from jaxcomp.core.specs import Count, method
from jaxcomp.data.dataset import Dataset
from jaxcomp.data.prepare import DataDir

NUM_CLASSES = 10
TEST_EXAMPLES = 360
# Never to be changed: with another seed the training and test sets differ, and results
# could no longer be compared with published ones.
SPLIT_SEED = 20240229


@method(given=1)
def digits(name: str, data_dir: DataDir = None, size: Count = 16) -> Dataset:
    """Handwritten digits 0..9 as grey images, 1437 for training and 360 for test.

    Args:
      data_dir: not used, because the images come with scikit-learn.
      size: height and width; the 8x8 originals are resized bilinearly.

    Returns:
      The data set with images [N, size, size, 1].

    Raises:
      UserError: size is below 1.

    Example:
      >>> digits(size=8).train_images.shape
      (1437, 8, 8, 1)

    References:
      Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits",
      https://archive.ics.uci.edu/dataset/80, 1998.
    """
    del data_dir
    levels, labels = _originals()
    images = _resize(levels * (255.0 / 16.0), size)
    test = _stratified(labels, TEST_EXAMPLES)
    train = np.setdiff1d(np.arange(len(labels)), test)
    scaled = images[train] / 255.0
    return Dataset(
        name=name,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        num_classes=NUM_CLASSES,
        mean=(float(scaled.mean()),),
        std=(float(scaled.std()),),
    )


@functools.cache
def _originals() -> tuple[np.ndarray, np.ndarray]:
    """Grey levels 0..16, float64 [1797, 8, 8], and labels, int32 [1797]."""
    # Imported here, because it takes about a second and no other data set needs it.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8), labels.astype(np.int32)


def _resize(images: np.ndarray, size: int) -> np.ndarray:
    """Resize bilinearly, out = W x W^T, from [N, h, h] to uint8 [N, size, size, 1]."""
    weights = _bilinear_weights(images.shape[-1], size)
    resized = weights @ images @ weights.T
    return np.rint(resized).astype(np.uint8)[..., None]


def _bilinear_weights(old: int, new: int) -> np.ndarray:
    """The matrix [new, old] that interpolates between pixel centres along one axis."""
    position = (np.arange(new) + 0.5) * old / new - 0.5
    distance = np.abs(position.clip(0, old - 1)[:, None] - np.arange(old))
    return np.maximum(0.0, 1.0 - distance)


def _stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of `count` examples in which each class has its share of the set.

    Shares are rounded by the method of largest remainders.
    """
    rng = np.random.default_rng(SPLIT_SEED)
    shares = np.bincount(labels) * (count / len(labels))
    quota = np.floor(shares).astype(int)
    left_over = count - quota.sum()
    quota[np.argsort(quota - shares, kind="stable")[:left_over]] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:number]
        for label, number in enumerate(quota)
    ]
    return np.sort(np.concatenate(chosen))
