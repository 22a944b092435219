"""Convex problems by name. Nothing is downloaded."""

import os
from collections.abc import Callable
from typing import Annotated

import numpy as np

from jaxcomp.problems import libsvm
from jaxcomp.problems.problem import Problem, Regulariser, make
from jaxcomp.specs import Count, Range, build, method

__all__ = ["REGISTRY", "breast_cancer", "digits", "from_libsvm", "load", "synthetic"]


@method()
def digits(name: str, regulariser: Regulariser = None, pairs: bool = False) -> Problem:
    """Even against odd handwritten digits: 1797 examples, 64 pixels and a bias.

    With `pairs` there are 1817 features: the pixels, the products of any two pixels
    (squares too) and the bias. The 328 features that are the same in all images are
    left out. All but the bias are standardised, and all are divided by one number so
    that rows have a mean squared length of 1. A compressor that sends one per cent of
    the elements then sends 18 numbers; of the 64 pixels it would send one.

    Args:
      regulariser: lam; by default 1 / examples.
      pairs: add the products of pixels.

    Example:
      >>> digits().features.shape, digits(pairs=True).features.shape
      ((1797, 65), (1797, 1817))

    References:
      Alpaydin and Kaynak, Optical Recognition of Handwritten Digits,
      https://archive.ics.uci.edu/dataset/80, 1998.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    features = pixels / 16
    if pairs:
        first, second = np.triu_indices(features.shape[1])
        products = features[:, first] * features[:, second]
        features = np.concatenate([features, products], axis=1)
        features = features[:, np.ptp(features, axis=0) > 0]
        features = (features - features.mean(axis=0)) / features.std(axis=0)
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    if pairs:
        features /= np.sqrt(np.square(features).sum(axis=1).mean())
    return make(name, features, np.where(labels % 2 == 0, 1, -1), regulariser)


@method()
def breast_cancer(name: str, regulariser: Regulariser = None) -> Problem:
    """Malignant (-1) against benign tumours: 569 examples, 30 standardised features.

    Args:
      regulariser: lam; by default 1 / examples.

    Example:
      >>> breast_cancer(regulariser=0.1).name
      'breast_cancer(regulariser=0.1)'

    References:
      Wolberg et al., Breast Cancer Wisconsin (Diagnostic),
      https://archive.ics.uci.edu/dataset/17, 1995.
    """
    from sklearn.datasets import load_breast_cancer

    measures, labels = load_breast_cancer(return_X_y=True)
    features = (measures - measures.mean(axis=0)) / measures.std(axis=0)
    return make(name, features, np.where(labels == 1, 1, -1), regulariser)


@method("examples", "features")
def synthetic(
    name: str,
    examples: Count = 1000,
    features: Count = 2000,
    seed: int = 0,
    noise: Annotated[float, Range(least=0, below=1)] = 0.1,
    regulariser: Regulariser = None,
) -> Problem:
    """Random features, and labels given by a random hyperplane, some of them flipped.

    Rows are Gaussian and have a length of about 1. Feature j has a standard deviation
    proportional to 1 / sqrt(j + 1): features of real data differ in size too, and if
    they did not, the largest elements of a gradient would matter no more than others.

    Args:
      examples: their number.
      features: their number.
      seed: of features, hyperplane and flips.
      noise: probability with which a label is flipped, below 1.
      regulariser: lam; by default 1 / examples.

    Example:
      >>> synthetic(examples=5, features=3).features.shape
      (5, 3)
    """
    generator = np.random.Generator(np.random.Philox(seed))
    scales = 1 / np.sqrt(np.arange(1, features + 1))
    scales /= np.linalg.norm(scales)
    rows = generator.standard_normal((examples, features), np.float32)
    rows *= scales.astype(np.float32)
    signs = np.where(rows @ generator.standard_normal(features) >= 0, 1, -1)
    turned = np.where(generator.random(examples) < noise, -1, 1)
    return make(name, rows, signs * turned, regulariser)


def from_libsvm(
    path: str, n_features: Count | None = None, regulariser: Regulariser = None
) -> Problem:
    """A problem from a file in LIBSVM format, such as rcv1 or epsilon.

    Args:
      path: text, .gz or .bz2.
      n_features: of the set; by default the largest index in the file.
      regulariser: lam; by default 1 / examples.
    """
    features, labels = libsvm.read(path, n_features)
    return make(os.path.basename(path), features, labels, regulariser)


REGISTRY: dict[str, Callable[..., Problem]] = {
    "breast_cancer": breast_cancer,
    "digits": digits,
    "libsvm": from_libsvm,
    "synthetic": synthetic,
}


def load(spec: str) -> Problem:
    """The problem that a spec string names.

    Example:
      >>> load("synthetic(examples=20, features=4)").dimension
      4
    """
    return build(spec, REGISTRY, "convex problem")
