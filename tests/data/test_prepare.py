"""Prepare and load: bit-exact, all or nothing."""

import functools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxcomp import data
from jaxcomp.data import sources
from jaxcomp.data.dataset import Dataset
from jaxcomp.data.prepare import Progress, prepare
from tests.data import archive_makers
from tests.data.archive_makers import Toy, pack

SHARED = Path(__file__).parents[3] / "shared"


def assert_holds(dataset: Dataset, toy: Toy) -> None:
    for field, expected in toy.splits._asdict().items():
        np.testing.assert_array_equal(getattr(dataset, field), expected)
    assert dataset.train_images.dtype == np.uint8
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32


def test_round_trip_is_bit_exact(tmp_path):
    toy = archive_makers.cifar10()
    archive = pack(toy.files, tmp_path / "a.tar.gz")
    root = tmp_path / "data"
    done = prepare(sources.arrays(toy.source), archive=archive, data_dir=root)
    assert "checked by: " in done
    assert [path.name for path in root.iterdir()] == [f"{toy.source.name}.npz"]
    assert_holds(sources.load(toy.source, data_dir=root), toy)


def test_second_prepare_does_nothing_and_force_prepares_anew(tmp_path):
    toy = archive_makers.mnist()
    archive = pack(toy.files, tmp_path / "folder")
    it, file = sources.arrays(toy.source), tmp_path / "mnist.npz"
    again = functools.partial(prepare, it, archive=archive, data_dir=tmp_path)
    again()
    stamp = file.stat().st_mtime_ns
    assert again() == ""
    assert file.stat().st_mtime_ns == stamp
    assert again(force=True).endswith("checked by: MD5 of every file")
    assert file.stat().st_mtime_ns > stamp
    assert_holds(sources.load(toy.source, data_dir=tmp_path), toy)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, data.DataError])
def test_interrupted_prepare_leaves_nothing(error, tmp_path):
    toy = archive_makers.mnist()
    archive = pack(toy.files, tmp_path / "folder")
    it, root = sources.arrays(toy.source), tmp_path / "data"

    def interrupted(path: Path, new: Path, progress: Progress) -> str:
        it.write(path, new, progress)
        raise error("now")

    # The second one has written nothing, so that the rename itself fails.
    broken = it._replace(write=interrupted), it._replace(write=lambda *_: "")
    for each, raised in zip(broken, (error, FileNotFoundError), strict=True):
        with pytest.raises(raised):
            prepare(each, archive=archive, data_dir=root)
        assert not root.exists()

    # The same with --force: what was there stays whole.
    prepare(it, archive=archive, data_dir=root)
    for each, raised in zip(broken, (error, FileNotFoundError), strict=True):
        with pytest.raises(raised):
            prepare(each, archive=archive, data_dir=root, force=True)
        assert [path.name for path in root.iterdir()] == ["mnist.npz"]
        assert_holds(sources.load(toy.source, data_dir=root), toy)


def test_not_prepared_is_a_quick_error_with_the_command(tmp_path, monkeypatch):
    start = time.perf_counter()
    with pytest.raises(data.DataError) as error:
        data.load("cifar10", data_dir=tmp_path)
    assert time.perf_counter() - start < 0.5
    command = f"jaxcomp data prepare cifar10 --archive FILE --data-dir {tmp_path}\n"
    assert command in str(error.value)
    assert str(tmp_path / "cifar10.npz") in str(error.value)
    # What older versions and TFDS have prepared.
    (tmp_path / "cifar10" / "3.0.2").mkdir(parents=True)
    with pytest.raises(data.DataError, match=r"tfds\(name='cifar10'\)\" reads it"):
        data.load("cifar10", data_dir=tmp_path)

    monkeypatch.setenv("JAXCOMP_DATA_DIR", str(tmp_path / "from_env"))
    with pytest.raises(data.DataError, match="from_env"):
        data.load("cifar10")


def test_a_damaged_file_is_an_error_with_the_command(tmp_path):
    toy = archive_makers.mnist()
    archive = pack(toy.files, tmp_path / "folder")
    prepare(sources.arrays(toy.source), archive=archive, data_dir=tmp_path)
    file = tmp_path / "mnist.npz"
    whole = bytearray(file.read_bytes())
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for content in (whole[:-100], whole[:10], changed, b""):
        file.write_bytes(content)
        with pytest.raises(data.DataError, match="prepare mnist --force"):
            sources.load(toy.source, data_dir=tmp_path)


@pytest.mark.slow
def test_real_cifar10_is_bit_exact(tmp_path):
    tool = SHARED / "tools" / "cifar10_binary.py"
    if not tool.exists():
        pytest.skip("needs the folder `shared` beside the repository (CIFAR-10)")
    subprocess.run([sys.executable, tool, tmp_path], check=True)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    prepare(
        sources.arrays(sources.SOURCES["cifar10"]), archive=archive, data_dir=tmp_path
    )
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
