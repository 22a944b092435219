"""Every form of every archive gives the same arrays; damaged ones are refused."""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.data import DataError, sources
from jaxcomp.data.archives import read_batch
from jaxcomp.data.sources import check
from tests.data import archive_makers
from tests.data.archive_makers import md5, pack

TARGETS = ["a.tar.gz", "a.tar", "a.zip", "a"]
TOYS = [
    archive_makers.cifar10,
    archive_makers.cifar100,
    archive_makers.mnist,
    archive_makers.svhn,
    archive_makers.stl10,
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", TOYS)
def test_every_form_gives_the_same_arrays(make, target, tmp_path):
    toy = make()
    for form, files in toy.files.items():
        path = pack(
            files, tmp_path / form / target if target == "a" else tmp_path / target
        )
        splits, _ = toy.source.read(path, toy.source.md5)
        check(splits, toy.source, path)
        for found, expected in zip(splits, toy.splits, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", ["a.tar.gz", "a.tar", "a.zip"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_cut_off_archive_is_refused(target, part, tmp_path):
    toy = archive_makers.cifar10()
    path = pack(toy.files["binary"], tmp_path / target)
    content = path.read_bytes()
    # The zeros that end a tar may be missing; its last member may not.
    end = content.rstrip(b"\0") if target == "a.tar" else content
    path.write_bytes(end[: int(part * len(end))])
    with pytest.raises(DataError) as error:
        toy.source.read(path, toy.source.md5)
    message = str(error.value)
    assert str(path) in message
    assert md5(path.read_bytes()) in message
    assert all(checksum in message for checksum in toy.source.md5.values())


def test_changed_pixel_names_the_batch_and_both_checksums(tmp_path):
    toy = archive_makers.cifar10()
    for form, name in (("binary", "data_batch_2.bin"), ("python", "data_batch_2")):
        files = dict(toy.files[form])
        member = next(key for key in files if key.endswith(name))
        changed = bytearray(files[member])
        changed[-500] ^= 1
        path = pack(files | {member: bytes(changed)}, tmp_path / f"{form}.tar")
        expected = toy.source.md5["data_batch_2.bin"]
        with pytest.raises(DataError, match=f"data_batch_2.*expected {expected}"):
            toy.source.read(path, toy.source.md5)


def test_archive_of_known_checksum_is_accepted(tmp_path):
    toy = archive_makers.cifar100()
    path = pack(toy.files["python"], tmp_path / "a.tar.gz")
    known = {"cifar-100-python.tar.gz": md5(path.read_bytes())}
    assert toy.source.read(path, known)[1] == "MD5 of the archive"
    assert "class balance" in toy.source.read(path, {})[1]


def test_real_checksums_refuse_another_content(tmp_path):
    toy = archive_makers.mnist()
    path = pack(toy.files["idx"], tmp_path / "folder")
    with pytest.raises(DataError, match="train-images.*f68b3c2dcbeaaa9fbdd348bbdeb"):
        sources.MNIST.read(path, sources.MNIST.md5)


def test_wrong_archive_lists_what_it_holds_and_what_is_needed(tmp_path):
    path = pack({"holiday/photo.jpg": b"x"}, tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"Found: photo.jpg. Needed: data_batch_1.bin"):
        sources.CIFAR10.read(path, sources.CIFAR10.md5)
    with pytest.raises(DataError, match="No such file"):
        sources.CIFAR10.read(tmp_path / "absent", {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": (7, 20)}, r"found images \(100, 32, 32, 3\).*expected \(7, 32"),
        ({"num_classes": 9}, r"found labels 0\.\.9, expected 0\.\.8"),
        ({"num_classes": 11}, "found classes of 0 to 10 examples"),
    ],
)
def test_check_tells_found_from_expected(change, message, tmp_path):
    toy = archive_makers.cifar10()
    source = toy.source._replace(**change)
    with pytest.raises(DataError, match=message):
        check(toy.splits, source, tmp_path)


class _Malicious:
    """A pickle that would create a file."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickle_is_refused_and_not_run(protocol, tmp_path):
    victim = tmp_path / "victim"
    toy = archive_makers.cifar10()
    files = dict(toy.files["python"])
    member = next(iter(files))
    files[member] = pickle.dumps({b"data": _Malicious(victim)}, protocol)
    path = pack(files, tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"data_batch_1.*names posix\.mkdir"):
        toy.source.read(path, toy.source.md5)
    assert not victim.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_every_protocol_are_read(protocol):
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    batch = read_batch(pickle.dumps({b"data": pixels, "n": [1]}, protocol), "here")
    np.testing.assert_array_equal(batch["data"], pixels)
    assert batch["n"] == [1]


def test_pickle_of_python_2_is_read():
    # As CIFAR-10's own: protocol 2, byte strings, NumPy's old module name.
    pixels = bytes(range(200, 206))
    pickled = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01"
        b"\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06"
        + pixels
        + b"tbs."
    )
    expected = np.frombuffer(pixels, np.uint8).reshape(2, 3)
    np.testing.assert_array_equal(read_batch(pickled, "here")["data"], expected)


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b".",  # bytes
        b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",  # a bytearray
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a place for what is used again
        b"\x80\x02Np99999999999\n.",
    ],
)
def test_a_small_pickle_takes_no_more_memory_than_it_has_bytes(pickled):
    with pytest.raises(DataError, match="here: damaged or refused pickle: "):
        read_batch(pickled, "here")


PIXELS = np.zeros((5, 32, 32, 3), np.uint8)
LABELS = np.arange(5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1 nothing", "damaged parquet file"),
        (
            archive_makers.parquet(PIXELS, {"digit": LABELS}),
            "no column label; it has img, digit",
        ),
        (
            archive_makers.parquet(PIXELS[:, :30], {"label": LABELS}),
            r"images of \(30, 32, 3\), expected \(32, 32, 3\)",
        ),
        (
            archive_makers.parquet(PIXELS[:4], {"label": LABELS[:4]}),
            "4 rows, expected a multiple of 5",
        ),
        (
            archive_makers.parquet(PIXELS, {"label": LABELS - 1}),
            "not a number from 0 to 255",
        ),
    ],
)
def test_other_parquet_files_are_refused(content, message, tmp_path):
    toy = archive_makers.cifar10()
    train = "train-00000-of-00001.parquet"
    path = pack({**toy.files["parquet"], train: content}, tmp_path / "a")
    with pytest.raises(DataError, match=message):
        toy.source.read(path, toy.source.md5)


@pytest.mark.parametrize("missing", ["pyarrow", "PIL"])
def test_a_missing_package_of_parquet_is_named(missing, tmp_path, monkeypatch):
    toy = archive_makers.cifar10()
    path = pack(toy.files["parquet"], tmp_path / "a")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DataError, match=f"{missing}.*: pip install pyarrow pillow"):
        toy.source.read(path, toy.source.md5)
