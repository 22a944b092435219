"""What TFDS has prepared, read without TensorFlow."""

import sys
from pathlib import Path

import numpy as np
import pytest

from jaxcomp import data
from jaxcomp.data import Pictures, prepare, tfds_any
from jaxcomp.data.dataset import DataError
from tests.data import archive_makers


@pytest.fixture(scope="module")
def toy() -> archive_makers.Toy:
    return archive_makers.mnist()


@pytest.fixture(scope="module")
def root(toy: archive_makers.Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a set of 28x28 images is prepared as array_record."""
    folder = tmp_path_factory.mktemp("tfds")
    prepare.write_builder(toy.source, toy.splits, folder, lambda *report: None)
    return folder


SPEC = "tfds(name='mnist:3.0.1')"


def test_a_small_set_of_one_size_is_read_into_memory(
    toy: archive_makers.Toy, root: Path
) -> None:
    found = data.load(SPEC, data_dir=root)
    assert found.name == SPEC
    for field, expected in toy.splits._asdict().items():
        np.testing.assert_array_equal(getattr(found, field), expected)
    scaled = toy.splits.train_images / 255
    np.testing.assert_allclose(found.mean, [scaled.mean()], rtol=1e-4)
    np.testing.assert_allclose(found.std, [scaled.std()], rtol=1e-4)
    assert found.num_classes == 10


def test_a_large_one_is_decoded_when_it_is_needed(
    toy: archive_makers.Toy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfds_any, "MEMORY_LIMIT", 1000)
    found = data.load("tfds(name='mnist', split='train[:20]')", data_dir=root)
    assert isinstance(found.train_images, Pictures)
    assert found.train_images.shape == (20, 28, 28, 1)
    places = np.array([[7, 3], [0, 19]])
    np.testing.assert_array_equal(
        found.train_images[places], toy.splits.train_images[places]
    )
    np.testing.assert_array_equal(found.train_labels, toy.splits.train_labels[:20])


def test_a_size_asks_for_windows(root: Path) -> None:
    found = data.load("tfds(name='mnist', size=8)", data_dir=root)
    images = found.train_images.in_epoch(0)[:3]
    assert images.shape == (3, 8, 8, 1)
    assert (images != found.train_images[:3]).any()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tfds(name='mnits')", "TFDS cannot read mnits in"),
        ("tfds(name='mnist', split='trian')", "TFDS cannot read mnist in"),
        ("tfds(name='mnist', label='digit')", "no feature 'digit'. .*Valid: .*label"),
    ],
)
def test_what_is_not_there_is_named(spec: str, message: str, root: Path) -> None:
    with pytest.raises(DataError, match=message):
        data.load(spec, data_dir=root)


def test_a_missing_package_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(DataError, match="pip install tensorflow_datasets array_record"):
        data.load(SPEC, data_dir=root)
