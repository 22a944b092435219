"""Every form of every archive gives the same arrays; damaged ones are refused."""

import numpy as np
import pytest

from jaxcomp.data import DataError
from jaxcomp.data.sources import SOURCES, check, read
from tests.data import archive_makers
from tests.data.archive_makers import md5, pack

TOYS = [
    archive_makers.cifar10,
    archive_makers.cifar100,
    archive_makers.mnist,
    archive_makers.svhn,
    archive_makers.stl10,
]


@pytest.mark.parametrize("target", ["a.tar.gz", "a.tar", "a.zip", "a"])
@pytest.mark.parametrize("make", TOYS)
def test_every_form_gives_the_same_arrays(make, target, tmp_path):
    toy = make()
    splits, evidence = read(toy.source, pack(toy.files, tmp_path / target))
    for found, expected in zip(splits, toy.splits, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert evidence.startswith("MD5 of every file" if toy.source.md5 else "counts")


@pytest.mark.parametrize("target", ["a.tar.gz", "a.tar", "a.zip"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_cut_off_archive_is_refused(target, part, tmp_path):
    toy = archive_makers.cifar10()
    path = pack(toy.files, tmp_path / target)
    content = path.read_bytes()
    # The zeros that end a tar may be missing; its last member may not.
    end = content.rstrip(b"\0") if target == "a.tar" else content
    path.write_bytes(end[: int(part * len(end))])
    with pytest.raises(DataError) as error:
        read(toy.source, path)
    said = (str(path), md5(path.read_bytes()), *toy.source.md5.values())
    assert all(word in str(error.value) for word in said)


def test_a_changed_pixel_names_the_file_and_both_checksums(tmp_path):
    toy = archive_makers.cifar10()
    member = next(name for name in toy.files if name.endswith("data_batch_2.bin"))
    changed = bytearray(toy.files[member])
    changed[-500] ^= 1
    path = pack({**toy.files, member: bytes(changed)}, tmp_path / "a.tar")
    both = (
        f"MD5 {md5(bytes(changed))}, expected MD5 {toy.source.md5['data_batch_2.bin']}"
    )
    with pytest.raises(DataError, match=f"data_batch_2.bin has .* {both}"):
        read(toy.source, path)


def test_an_archive_of_known_checksum_is_accepted(tmp_path):
    toy = archive_makers.cifar100()
    path = pack(toy.files, tmp_path / "a.tar.gz")
    known = {"cifar-100-binary.tar.gz": md5(path.read_bytes())}
    assert read(toy.source._replace(md5=known), path)[1] == "MD5 of the archive"


def test_wrong_archive_lists_what_it_holds_and_what_is_needed(tmp_path):
    path = pack({"holiday/photo.jpg": b"x"}, tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"Found: photo.jpg. Needed: data_batch_1.bin"):
        read(SOURCES["cifar10"], path)
    with pytest.raises(DataError, match="No such file"):
        read(SOURCES["cifar10"], tmp_path / "absent")
    short = pack(dict.fromkeys(SOURCES["cifar100"].files, b"x"), tmp_path / "short")
    with pytest.raises(DataError, match="1 bytes, expected a multiple of 3074"):
        read(SOURCES["cifar100"], short)


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
    with pytest.raises(DataError, match=message):
        check(toy.splits, toy.source._replace(**change), tmp_path)
