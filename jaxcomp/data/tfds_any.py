"""Any data set of images that TensorFlow Datasets has prepared, without TensorFlow."""

import functools
import math
import os
from typing import Annotated, Any

import numpy as np

from jaxcomp.core.specs import Range, method, suggest
from jaxcomp.data.dataset import IMAGENET_COLOURS, DataError, Dataset
from jaxcomp.data.pictures import Pictures, Share, View, as_it_is, cropped

# Data sets up to this size are decoded once and stay in memory.
MEMORY_LIMIT = 2**30
CHUNK = 1000  # records that are read at a time


@method("name", given=1)
def tfds(
    spec: str,
    data_dir: str | os.PathLike[str] | None,
    name: str,
    split: str = "train",
    test_split: str = "test",
    size: Annotated[int, Range(least=0)] = 0,
    resize: Annotated[int, Range(least=0)] = 0,
    scale_min: Share = 0.08,
    ratio: Share = 0.75,
    image: str = "image",
    label: str = "label",
    seed: Annotated[int, Range(least=0)] = 0,
) -> Dataset:
    """Any data set of images and labels that TFDS has prepared as array_record.

    Images of one size that take up to 1 GiB are decoded once. Others are decoded when
    they are needed, with the views of `class_folders`; then each record is read once at
    the start, because it holds the label.

    Args:
      data_dir: in which TFDS prepared it; else TFDS's own folder.
      name: as TFDS takes it, such as "oxford_flowers102:2.1.1".
      split: of training examples, such as "train[:90%]".
      test_split: of those for the test.
      size: of a side of the images, where those of the data set have several sizes; 0
        to leave them as they are.
      resize: as in `class_folders`.
      scale_min: likewise.
      ratio: likewise.
      image: the feature that holds the image.
      label: the feature that holds its class.
      seed: of random windows; by default that of the run.

    Returns:
      The data set. Channels are normalised by their mean over the training images in
      memory; by that of ImageNet where images are decoded later.

    Raises:
      DataError: TFDS is not installed, or cannot read the data set.
    """
    given = _open(name, data_dir, (split, test_split), image)
    features = given[0].dataset_info.features
    for feature in (image, label):
        if feature not in features:
            message = f"{name} has no feature {feature!r}. {suggest(feature, features)}"
            raise DataError(message)
    *side, channels = features[image].shape
    if None in side and not size:
        message = f"{name}: its images have several sizes: give one, such as size=224"
        raise DataError(message)
    side = [size, size] if size else side
    resize = resize or round(size * 256 / 224)

    def crop(side: int) -> View:
        return cropped(side, round(side * resize / size), scale_min, ratio)

    view = crop(size) if size else as_it_is
    colours = IMAGENET_COLOURS if channels in (3, None) else ((0.5,), (0.25,))

    def images(source: Any, part: str) -> Pictures:
        return Pictures(
            read=lambda place: source[place][image],
            where=lambda place: f"record {place} of {name}, {part}",
            shape=(len(source), side[0], side[1], channels or 3),
            view=view,
            seed=seed,
            sized=crop if size else None,
        )

    train: Any = images(given[0], split)
    test: Any = images(given[1], test_split)
    if not size and math.prod(train.shape) + math.prod(test.shape) <= MEMORY_LIMIT:
        train, test = train[:], test[:]
        colours = _colours(train)
    labels = [_labels(source, label) for source in given]
    classes = features[label].num_classes
    return Dataset(spec, train, labels[0], test, labels[1], classes, *colours)


def _open(
    name: str, data_dir: Any, splits: tuple[str, str], image: str
) -> tuple[Any, Any]:
    """The data sources of two splits, whose images stay encoded."""
    try:
        import tensorflow_datasets
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_datasets":
            raise
        message = f"{name}: reading it needs tensorflow_datasets and array_record"
        command = "pip install tensorflow_datasets array_record"
        raise DataError(f"{message}: {command}. TensorFlow is not needed") from None
    try:
        open_split = functools.partial(
            tensorflow_datasets.data_source,
            name,
            data_dir=data_dir and os.fspath(data_dir),
            download=False,
            decoders={image: tensorflow_datasets.decode.SkipDecoding()},
        )
        return open_split(split=splits[0]), open_split(split=splits[1])
    except Exception as error:  # TFDS raises errors of many kinds
        where = data_dir or "TFDS's own folder"
        raise DataError(
            f"TFDS cannot read {name} in {where}: {error}\nPrepare it as array_record: "
            f"tfds build {name} --file_format=array_record"
        ) from error


def _colours(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels from 0 to 1."""
    levels, counts = np.arange(256) / 255, np.zeros((images.shape[-1], 256))
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK]
        for channel, count in enumerate(counts):
            count += np.bincount(chunk[..., channel].ravel(), minlength=256)
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ levels
    variance = (shares * (levels[None] - mean[:, None]) ** 2).sum(axis=1)
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def _labels(source: Any, label: str) -> np.ndarray:
    """The label of each record, all of which are read for it."""
    found = np.empty(len(source), np.int32)
    for start in range(0, len(source), CHUNK):
        places = range(start, min(start + CHUNK, len(source)))
        records = source.__getitems__(list(places))
        found[places.start : places.stop] = [record[label] for record in records]
    return found
