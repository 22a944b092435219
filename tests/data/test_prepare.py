"""Prepare and load: bit-exact, all or nothing, without TensorFlow."""

import functools
import io
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxcomp import data
from jaxcomp.data import prepare as builders
from jaxcomp.data import prepare as cache
from jaxcomp.data import prepare as tfds_source
from jaxcomp.data import sources
from jaxcomp.data.dataset import Dataset
from jaxcomp.data.prepare import prepare
from tests.data import archive_makers
from tests.data.archive_makers import Toy, pack

SHARED = Path(__file__).parents[3] / "shared"


def assert_holds(dataset: Dataset, toy: Toy) -> None:
    for field, expected in toy.splits._asdict().items():
        np.testing.assert_array_equal(getattr(dataset, field), expected)
    assert dataset.train_images.dtype == np.uint8
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32


@pytest.mark.parametrize(
    "make", [archive_makers.cifar10, archive_makers.cifar100, archive_makers.mnist]
)
def test_round_trip_is_bit_exact(make: Callable[[], Toy], tmp_path: Path) -> None:
    toy = make()
    archive = pack(next(iter(toy.files.values())), tmp_path / "a.tar.gz")
    root = tmp_path / "data"
    folder, evidence = prepare(toy.source, archive=archive, data_dir=root)
    assert evidence
    assert folder == root / toy.source.name / toy.source.version
    assert [path.name for path in root.iterdir()] == [toy.source.name]
    load = functools.partial(tfds_source.load, toy.source, data_dir=root)
    # Kept arrays are what a load reads; damaged ones are made anew from the records.
    kept = folder / cache.FILE
    assert_holds(load(), toy)
    kept.write_bytes(kept.read_bytes()[:-100])
    assert_holds(load(), toy)
    assert cache.read(folder) is not None


def test_second_prepare_does_nothing_and_force_prepares_anew(tmp_path: Path) -> None:
    toy = archive_makers.mnist()
    archive = pack(toy.files["idx"], tmp_path / "folder")
    again = functools.partial(prepare, toy.source, archive=archive, data_dir=tmp_path)
    folder, _ = again()
    stamp = (folder / "features.json").stat().st_mtime_ns
    assert again().evidence is None
    assert (folder / "features.json").stat().st_mtime_ns == stamp
    assert again(force=True).evidence == "MD5 of every file"
    assert (folder / "features.json").stat().st_mtime_ns > stamp
    assert_holds(tfds_source.load(toy.source, data_dir=tmp_path), toy)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, data.DataError])
def test_interrupted_prepare_leaves_nothing(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = archive_makers.mnist()
    archive = pack(toy.files["idx"], tmp_path / "folder")
    root = tmp_path / "data"

    def interrupt(task: str, done: int, total: int) -> None:
        if task == "writing test":
            raise error("now")

    with pytest.raises(error):
        prepare(toy.source, archive=archive, data_dir=root, progress=interrupt)
    assert not root.exists()

    # The same with --force: what was there stays whole.
    prepare(toy.source, archive=archive, data_dir=root)
    with pytest.raises(error):
        prepare(
            toy.source, archive=archive, data_dir=root, force=True, progress=interrupt
        )
    assert [path.name for path in root.iterdir()] == ["mnist"]
    assert_holds(tfds_source.load(toy.source, data_dir=root), toy)

    # And when the rename itself fails.
    def no_result(*_: object) -> Path:
        return tmp_path / "absent"

    monkeypatch.setattr(builders, "write_builder", no_result)
    with pytest.raises(FileNotFoundError):
        prepare(toy.source, archive=archive, data_dir=root, force=True)
    assert_holds(tfds_source.load(toy.source, data_dir=root), toy)


def test_cut_off_archive_leaves_nothing(tmp_path: Path) -> None:
    toy = archive_makers.cifar10()
    archive = pack(toy.files["binary"], tmp_path / "a.tar.gz")
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(data.DataError, match="cut off"):
        prepare(toy.source, archive=archive, data_dir=tmp_path / "data")
    assert list(tmp_path.iterdir()) == [archive]


def test_not_prepared_is_a_quick_error_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.perf_counter()
    with pytest.raises(data.DataError) as error:
        data.load("cifar10", data_dir=tmp_path)
    assert time.perf_counter() - start < 0.5
    command = f"jaxcomp data prepare cifar10 --archive FILE --data-dir {tmp_path}\n"
    assert command in str(error.value)
    assert str(tmp_path / "cifar10" / "3.0.2") in str(error.value)

    monkeypatch.setenv("JAXCOMP_DATA_DIR", str(tmp_path / "from_env"))
    with pytest.raises(data.DataError, match="from_env"):
        data.load("cifar10")


def test_damaged_records_are_an_error_with_the_command(tmp_path: Path) -> None:
    toy = archive_makers.mnist()
    archive = pack(toy.files["idx"], tmp_path / "folder")
    folder, _ = prepare(toy.source, archive=archive, data_dir=tmp_path)
    (folder / cache.FILE).unlink()
    for record in folder.glob("*array_record*"):
        record.write_bytes(record.read_bytes()[:200])
    with pytest.raises(data.DataError, match="prepare mnist --force"):
        tfds_source.load(toy.source, data_dir=tmp_path)


class _Shuffled(list[dict[str, Any]]):
    """Records in another order than their ids, as TFDS's own builders leave them."""

    def __getitems__(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        return [self[key] for key in keys]


def test_records_with_ids_come_in_the_order_of_the_archive() -> None:
    toy = archive_makers.cifar10()
    records = _Shuffled()
    for index in np.random.default_rng(0).permutation(len(toy.splits.train_images)):
        png = io.BytesIO()
        Image.fromarray(toy.splits.train_images[index]).save(png, "png")
        label = int(toy.splits.train_labels[index])
        name = f"train_{index:05d}".encode()
        records.append({"id": name, "image": png.getvalue(), "label": label})
    images, labels = tfds_source.read_records(records, toy.source)
    np.testing.assert_array_equal(images, toy.splits.train_images)
    np.testing.assert_array_equal(labels, toy.splits.train_labels)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'cifar100'.*fashion_mnist"):
        data.load("cifar_100")


_WITHOUT_TENSORFLOW = """
import sys
sys.path.insert(0, sys.argv[1])
import jaxcomp.data
heavy = {"tensorflow_datasets", "sklearn", "PIL", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from tests.data import archive_makers
from pathlib import Path
from jaxcomp.data import prepare as tfds_source
from jaxcomp.data.prepare import prepare
toy, root = archive_makers.cifar10(), Path(sys.argv[2])
archive = archive_makers.pack(toy.files["python"], root / "a.tar.gz")
prepare(toy.source, archive=archive, data_dir=root)
assert len(tfds_source.load(toy.source, data_dir=root).train_images) == 100
found = jaxcomp.data.load("tfds(name='cifar10:3.0.2')", data_dir=root)
assert found.train_images.shape == (100, 32, 32, 3)
assert "tensorflow" not in sys.modules
"""


def test_tensorflow_is_never_imported(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    subprocess.run(
        [sys.executable, "-W", "error", "-c", _WITHOUT_TENSORFLOW, here, tmp_path],
        check=True,
    )


@pytest.mark.slow
def test_real_cifar10_is_bit_exact(tmp_path: Path) -> None:
    tool = SHARED / "tools" / "cifar10_binary.py"
    if not tool.exists():
        pytest.skip("needs the folder `shared` beside the repository (CIFAR-10)")
    subprocess.run([sys.executable, tool, tmp_path], check=True)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    prepare(sources.CIFAR10, archive=archive, data_dir=tmp_path)
    for kept in (True, False):
        if not kept:
            (tmp_path / "cifar10" / "3.0.2" / cache.FILE).unlink()
        dataset = data.load("cifar10", data_dir=tmp_path)
        names = [f"data_batch_{number}.bin" for number in range(1, 6)]
        for images, labels, files in (
            (dataset.train_images, dataset.train_labels, names),
            (dataset.test_images, dataset.test_labels, ["test_batch.bin"]),
        ):
            folder = tmp_path / "cifar-10-batches-bin"
            stored = b"".join((folder / name).read_bytes() for name in files)
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            record = np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1)
            assert record.tobytes() == stored
