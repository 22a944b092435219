"""What TFDS has prepared, read without TensorFlow."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxcomp import data
from jaxcomp.data import Pictures, tfds_any
from jaxcomp.data.dataset import DataError
from tests.data import archive_makers


@pytest.fixture(scope="module")
def toy() -> archive_makers.Toy:
    return archive_makers.mnist()


@pytest.fixture(scope="module")
def root(toy: archive_makers.Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a set of 28x28 images is prepared as array_record."""
    folder = tmp_path_factory.mktemp("tfds")
    write_records(toy, folder)
    return folder


def write_records(toy: archive_makers.Toy, root: Path) -> None:
    """As TFDS's own builders do."""
    import tensorflow_datasets as tfds

    halves = {"train": toy.splits[:2], "test": toy.splits[2:]}

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = toy.source.name
        VERSION = tfds.core.Version("3.0.1")
        url_infos = None  # there are no downloads

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "image": tfds.features.Image(shape=toy.source.shape),
                "label": tfds.features.ClassLabel(num_classes=toy.source.num_classes),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {half: self._generate_examples(half) for half in halves}

        def _generate_examples(self, half: str) -> Iterator[tuple[int, dict[str, Any]]]:
            for index, (image, label) in enumerate(zip(*halves[half], strict=True)):
                yield index, {"image": Image.fromarray(image[..., 0]), "label": label}

    config = tfds.download.DownloadConfig(try_download_gcs=False)
    Builder(data_dir=root).download_and_prepare(
        file_format="array_record", download_config=config
    )


SPEC = "tfds(name='mnist:3.0.1')"


def test_a_small_set_of_one_size_is_read_into_memory(toy, root):
    found = data.load(SPEC, data_dir=root)
    assert found.name == SPEC
    for field, expected in toy.splits._asdict().items():
        np.testing.assert_array_equal(getattr(found, field), expected)
    scaled = toy.splits.train_images / 255
    np.testing.assert_allclose(found.mean, [scaled.mean()], rtol=1e-4)
    np.testing.assert_allclose(found.std, [scaled.std()], rtol=1e-4)
    assert found.num_classes == 10


def test_a_large_one_is_decoded_when_it_is_needed(toy, root, monkeypatch):
    monkeypatch.setattr(tfds_any, "MEMORY_LIMIT", 1000)
    found = data.load("tfds(name='mnist', split='train[:20]')", data_dir=root)
    assert isinstance(found.train_images, Pictures)
    assert found.train_images.shape == (20, 28, 28, 1)
    places = np.array([[7, 3], [0, 19]])
    np.testing.assert_array_equal(
        found.train_images[places], toy.splits.train_images[places]
    )
    np.testing.assert_array_equal(found.train_labels, toy.splits.train_labels[:20])


def test_a_size_asks_for_windows(root):
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
def test_what_is_not_there_is_named(spec, message, root):
    with pytest.raises(DataError, match=message):
        data.load(spec, data_dir=root)


def test_a_missing_package_is_named(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(DataError, match="pip install tensorflow_datasets array_record"):
        data.load(SPEC, data_dir=root)


_WITHOUT_TENSORFLOW = """
import sys
import jaxcomp.data
heavy = {"tensorflow", "tensorflow_datasets", "sklearn", "PIL", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
found = jaxcomp.data.load("tfds(name='mnist:3.0.1')", data_dir=sys.argv[1])
assert found.train_images.shape == (30, 28, 28, 1)
assert "tensorflow" not in sys.modules
"""


def test_heavy_packages_are_not_imported_and_tensorflow_never(root):
    words = [sys.executable, "-W", "error", "-c", _WITHOUT_TENSORFLOW, str(root)]
    subprocess.run(words, check=True)
