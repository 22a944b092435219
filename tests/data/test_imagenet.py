"""The batches of the downsampled ImageNet in their published form, in small."""

import io
from typing import Any

import numpy as np
import pytest

from jaxcomp.data import DataError
from jaxcomp.data.imagenet import DOWNSAMPLED, Downsampled, arrays, load
from jaxcomp.data.prepare import prepare
from tests.data.archive_makers import pack

NAMES = ("train_data_batch_1.npz", "train_data_batch_2.npz")
SMALL = Downsampled("imagenet4", 4, (6, 2), 3, NAMES)


def stored(content: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **content)
    return stream.getvalue()


def batches() -> tuple[dict[str, Any], list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    files, images, labels = {}, [], []
    for name, count in ((NAMES[0], 3), (NAMES[1], 3), ("val_data.npz", 2)):
        images.append(rng.integers(0, 256, (count, 4, 4, 3), np.uint8))
        labels.append(rng.integers(0, 3, count))
        planes = images[-1].transpose(0, 3, 1, 2).reshape(count, -1)
        mean = planes.mean(axis=0)
        files[name] = {"data": planes, "labels": labels[-1] + 1, "mean": mean}
    return files, images, labels


def test_batches_become_arrays_on_disk(tmp_path):
    files, images, labels = batches()
    packed = {name: stored(content) for name, content in files.items()}
    archive = pack(packed, tmp_path / "batches")
    reports: list[tuple[str, int, int]] = []
    report = lambda *row: reports.append(row)  # noqa: E731
    prepare(arrays(SMALL), archive=archive, data_dir=tmp_path, progress=report)
    assert reports[-1] == ("writing test", 2, 2)
    dataset = load(SMALL, tmp_path)
    assert isinstance(dataset.train_images, np.memmap)
    np.testing.assert_array_equal(dataset.train_images, np.concatenate(images[:2]))
    np.testing.assert_array_equal(dataset.train_labels, np.concatenate(labels[:2]))
    np.testing.assert_array_equal(dataset.test_images, images[2])
    np.testing.assert_array_equal(dataset.test_labels, labels[2])
    assert not prepare(arrays(SMALL), archive=archive, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((3, 12), np.uint8)}, r"data is uint8 \(3, 12\), expected"),
        ({"data": np.zeros((3, 48))}, "data is float64"),
        ({"data": np.array([None] * 3)}, "damaged, or no batch: Object arrays"),
        ({"labels": [0, 1, 2]}, r"labels 0\.\.2, expected 1\.\.3"),
        ({"labels": [1, 2, 4]}, r"labels 1\.\.4, expected 1\.\.3"),
        ({"labels": [0.5, 1, 2]}, "labels are float64"),
        ({"data": np.zeros((2, 48), np.uint8), "labels": [1, 1]}, "5 images, expected"),
        (None, "damaged, or no batch"),
    ],
)
def test_other_batches_are_refused_and_leave_nothing(change, message, tmp_path):
    files, _, _ = batches()
    packed = {name: stored(content) for name, content in files.items()}
    packed[NAMES[1]] = b"x" if change is None else stored(files[NAMES[1]] | change)
    archive = pack(packed, tmp_path / "batches")
    with pytest.raises(DataError, match=message):
        prepare(arrays(SMALL), archive=archive, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_absent_one_says_how_to_prepare_it(tmp_path):
    with pytest.raises(DataError, match="prepare imagenet32 --archive FOLDER"):
        load(DOWNSAMPLED["imagenet32"], tmp_path)
    with pytest.raises(DataError, match="asks for a login"):
        prepare(arrays(SMALL), data_dir=tmp_path)
