"""Logistic regressions by name, with a known optimum."""

import os
import zlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, Range, build, check, method


class Rows(NamedTuple):
    """A sparse matrix, all of whose rows are padded by index 0 and value 0."""

    indices: Any  # int32 [examples, longest row]
    values: Any  # float32, the same shape
    width: int  # features


_BLOCK = 1 << 22  # elements of a dense matrix that are converted to float64 at a time

Regulariser = Annotated[float, Range(least=0)] | None  # None: 1 / examples
Features = Any  # float32 [examples, features], or Rows


class Problem(NamedTuple):
    """The data of one logistic regression, as NumPy arrays."""

    name: str
    features: Features
    labels: np.ndarray  # float32 [examples], -1 or +1
    regulariser: float  # lam

    @property
    def examples(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        sparse = isinstance(self.features, Rows)
        return self.features.width if sparse else self.features.shape[1]


class Objective(NamedTuple):
    """f and its derivatives over all examples, in NumPy float64."""

    value: Callable[[ArrayLike], float]
    gradient: Callable[[ArrayLike], np.ndarray]
    curvature: Callable[[ArrayLike], np.ndarray]  # s (1 - s) of each, [examples]
    hessian_product: Callable[[np.ndarray, np.ndarray], np.ndarray]  # curvature, v
    hessian: Callable[[np.ndarray], np.ndarray]  # curvature -> [features, features]


def make(
    name: str, features: Features, labels: ArrayLike, regulariser: Regulariser = None
) -> Problem:
    """A problem of given data, which are checked.

    Args:
      name: of the problem, for tables and messages.
      features: [examples, features], or `Rows`.
      labels: [examples], -1 or +1.
      regulariser: lam; by default 1 / examples.

    Example:
      >>> problem = make("two", [[1.0, 0.0], [0.0, 2.0]], [1, -1])
      >>> problem.examples, problem.dimension, problem.regulariser
      (2, 2, 0.5)
    """
    if not isinstance(features, Rows):
        features = np.ascontiguousarray(features, np.float32)
        if features.ndim != 2 or 0 in features.shape:
            raise UserError(f"features are [examples, features], not {features.shape}")
    signs = np.asarray(labels, np.float32)
    values = features.values if isinstance(features, Rows) else features
    if signs.shape != values.shape[:1]:
        raise UserError(f"{len(values)} examples have labels of shape {signs.shape}")
    wrong = signs[np.abs(signs) != 1]
    if wrong.size:
        raise UserError(f"labels are -1 or +1, not {float(wrong[0])}")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise UserError(f"{name}: example {row} is not finite")
    check(Regulariser, "regulariser", regulariser)
    lam = 1 / len(signs) if regulariser is None else regulariser
    return Problem(name, features, signs, float(lam))


def loss(problem: Problem, x: ArrayLike) -> float:
    """f(x) over all examples in float64. To evaluate many x, use `objective`.

    Example:
      >>> problem = make("two", [[1.0, 0.0], [0.0, 2.0]], [1, -1])
      >>> round(loss(problem, [0.0, 0.0]), 6)
      0.693147
    """
    return objective(problem).value(x)


def objective(problem: Problem) -> Objective:
    """f, its gradient and its Hessian over all examples, in NumPy float64."""
    lam, count, width = problem.regulariser, problem.examples, problem.dimension
    labels = problem.labels.astype(np.float64)
    parts = _parts(problem.features)

    def predicted(x: np.ndarray) -> np.ndarray:
        return np.concatenate([part @ x for _, part in parts()])

    def pulled(slopes: np.ndarray) -> np.ndarray:
        total = np.zeros(width)
        for rows, part in parts():
            total += part.T @ slopes[rows]
        return total / count

    def value(x: ArrayLike) -> float:
        place = np.asarray(x, np.float64)
        terms = np.logaddexp(0, -labels * predicted(place))
        return float(np.mean(terms)) + lam / 2 * float(np.sum(np.square(place)))

    def slope(x: ArrayLike) -> np.ndarray:
        place = np.asarray(x, np.float64)
        return lam * place - pulled(labels * _logistic(-labels * predicted(place)))

    def curvature(x: ArrayLike) -> np.ndarray:
        likely = _logistic(predicted(np.asarray(x, np.float64)))
        return likely * (1 - likely)

    def hessian_product(bends: np.ndarray, v: np.ndarray) -> np.ndarray:
        return pulled(bends * predicted(v)) + lam * v

    def hessian(bends: np.ndarray) -> np.ndarray:
        total = lam * np.eye(width)
        for rows, part in parts():
            square = (part * np.sqrt(bends[rows] / count)[:, None]).T
            square = square @ square.T
            total += square if isinstance(square, np.ndarray) else square.toarray()
        return total

    return Objective(value, slope, curvature, hessian_product, hessian)


def _parts(features: Features) -> Callable[[], Iterator[tuple[slice, Any]]]:
    """A function that iterates over the features in float64, in blocks of rows.

    Sparse features become one SciPy matrix without the padding. Dense ones are
    converted a block at a time, since a float64 copy of a large data set may not fit
    into memory.
    """
    if not isinstance(features, Rows):
        step = max(1, _BLOCK // features.shape[1])
        slices = [slice(i, i + step) for i in range(0, len(features), step)]
        return lambda: ((rows, features[rows].astype(np.float64)) for rows in slices)
    # Imported here, because it takes a while to load and dense problems do not need it.
    from scipy.sparse import csr_array

    real = features.values != 0
    ends = np.concatenate([[0], np.cumsum(real.sum(axis=1))])
    values = features.values[real].astype(np.float64)
    shape = len(features.values), features.width
    whole = csr_array((values, features.indices[real], ends), shape=shape)
    return lambda: iter([(slice(None), whole)])


def _logistic(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow for large z of either sign."""
    return np.exp(-np.logaddexp(0, -z))


# With more than this fraction of nonzero elements a dense matrix is smaller and faster.
_DENSE_PART = 0.25
_SETS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"


def read(
    path: str | os.PathLike[str], n_features: int | None = None
) -> tuple[Features, np.ndarray]:
    """Read a file with two different labels.

    Args:
      path: of a text file, which may be compressed as .gz or .bz2.
      n_features: number of features, if the last ones may be absent from the file; by
        default the largest index.

    Returns:
      The features, dense if more than a quarter of the elements are nonzero, and the
      labels: the smaller of the two values in the file becomes -1, the larger +1.

    Raises:
      UserError: the file is not there, is cut off, or is no LIBSVM text.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     file = pathlib.Path(folder) / "small"
      ...     _ = file.write_text("1 1:0.5 3:2 # first\\n2 2:1\\n")
      ...     features, labels = read(file)
      >>> features.tolist(), labels.tolist()
      ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [-1.0, 1.0])

    References:
      Chang and Lin, LIBSVM: A Library for Support Vector Machines,
      https://www.csie.ntu.edu.tw/~cjlin/libsvm/, 2011.
    """
    # Imported here, because it takes a second and only readers of such files need it.
    from sklearn.datasets import load_svmlight_file

    check(Count | None, "n_features", n_features)
    place, options = os.fspath(path), {"n_features": n_features, "zero_based": False}
    try:
        load: Any = load_svmlight_file
        matrix, labels = load(place, dtype=np.float32, **options)
    except FileNotFoundError:
        raise UserError(f"{place}: no such file. Sets to fetch: {_SETS}") from None
    except (EOFError, OSError, OverflowError, ValueError, zlib.error) as error:
        raise UserError(f"{place} is not whole LIBSVM text: {error}") from error
    kinds = np.unique(labels)
    if len(kinds) != 2 or not np.isfinite(kinds).all():
        shown = ", ".join(f"{kind:g}" for kind in kinds[:3]) or "no examples"
        raise UserError(f"{place}: examples have two kinds of labels, not {shown}")
    signs = np.where(labels == kinds[1], 1, -1).astype(np.float32)
    return _features(matrix, n_features), signs


def _features(matrix: Any, n_features: int | None) -> Features:
    """The features of a SciPy matrix, as a dense array or as `Rows`."""
    count, width = matrix.shape[0], n_features or max(1, matrix.shape[1])
    lengths = np.diff(matrix.indptr)
    rows = np.repeat(np.arange(count), lengths)
    if matrix.data.size > _DENSE_PART * count * width:
        values = np.zeros((count, width), np.float32)
        values[rows, matrix.indices] = matrix.data
        return values
    values = np.zeros((count, max(1, lengths.max())), np.float32)
    indices = np.zeros(values.shape, np.int32)
    places = np.arange(len(rows)) - matrix.indptr[rows]
    values[rows, places], indices[rows, places] = matrix.data, matrix.indices
    return Rows(indices, values, width)


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
    features, labels = read(path, n_features)
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
