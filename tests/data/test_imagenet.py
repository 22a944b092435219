"""The archives of ImageNet in their published form, in small."""

import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from jaxcomp.data import DataError
from jaxcomp.data.imagenet import (
    DEVKIT,
    DOWNSAMPLED,
    LIST,
    TRAIN,
    VALIDATION,
    Downsampled,
    arrays,
    load,
    pictures,
)
from jaxcomp.data.prepare import find, prepare
from tests.data.archive_makers import pack

SYNSETS = ("n01440764", "n01443537")
TRUTH = (2, 1, 2)  # of the validation images, by the numbers of the kit
COUNTS = (4, 3)
META = [("ILSVRC2012_ID", "u2"), ("WNID", "O"), ("num_children", "u1")]
KIT = "ILSVRC2012_devkit_t12/data"
KIT_META = f"{KIT}/meta.mat"


def tar(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def devkit() -> dict[str, bytes]:
    """Numbers of classes, of which the third has the others below it."""
    rows = [(2, SYNSETS[0], 0), (1, SYNSETS[1], 0), (1001, "n00000000", 2)]
    stream = io.BytesIO()
    savemat(stream, {"synsets": np.array(rows, META)[:, None]})
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    return {
        KIT_META: stream.getvalue(),
        f"{KIT}/ILSVRC2012_validation_ground_truth.txt": truth,
    }


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A folder with the three files."""
    inner = {
        f"{synset}.tar": tar({f"{synset}_{i}.JPEG": b"%d" % i for i in (7, 9)})
        for synset in SYNSETS
    }
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2, 3)]
    folder = tmp_path / "official"
    files = {
        TRAIN: tar(inner),
        VALIDATION: tar({name: name.encode() for name in names}),
    }
    pack(files, folder)
    pack(devkit(), folder / DEVKIT)
    return folder


def prepared(official: Path, root: Path) -> Path:
    it = pictures(COUNTS)
    assert prepare(it, archive=official, data_dir=root)
    return root / "imagenet"


def test_the_official_files_become_class_folders(official, tmp_path):
    folder = prepared(official, tmp_path / "data")
    assert find(pictures(), tmp_path / "data") == folder
    found = {str(p.relative_to(folder)) for p in folder.rglob("*.JPEG")}
    train = {f"train/{s}/{s}_{i}.JPEG" for s in SYNSETS for i in (7, 9)}
    # Number 2 of the kit is the first synset.
    truth = (SYNSETS[0], SYNSETS[1], SYNSETS[0])
    val = {f"val/{s}/ILSVRC2012_val_{i:08d}.JPEG" for i, s in enumerate(truth, 1)}
    assert found == train | val
    assert (folder / f"train/{SYNSETS[0]}/{SYNSETS[0]}_9.JPEG").read_bytes() == b"9"
    assert not prepare(pictures(), archive=official, data_dir=tmp_path / "data")


def test_a_list_of_synsets_does_as_well_as_the_kit(official, tmp_path):
    (official / DEVKIT).unlink()
    with pytest.raises(DataError, match="holds neither ILSVRC2012_devkit.* nor"):
        prepared(official, tmp_path / "data")
    (official / LIST).write_text("\n".join([SYNSETS[1], *SYNSETS]))
    folder = prepared(official, tmp_path / "data")
    assert len(list((folder / "val" / SYNSETS[1]).iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (TRAIN, tar({"holiday.jpg": b""}), "it holds holiday.jpg, expected"),
        (TRAIN, tar({"n01440764.tar": b"x" * 600}), "img_train.tar is cut"),
        (
            TRAIN,
            tar({"n01440764.tar": tar({"a b.JPEG": b""})}),
            "'a b.JPEG', which is no name of a picture",
        ),
        (
            TRAIN,
            tar({"n01440764.tar": tar({"a.JPEG": b""})}),
            "img_train.tar: 1 images, expected 4",
        ),
        (VALIDATION, tar({"ILSVRC2012_val_00000004.JPEG": b""}), "00000004"),
        (VALIDATION, tar({"a": b"x" * 9000})[:3000], "it holds a, expected"),
        (VALIDATION, b"", "img_val.tar is cut off or damaged"),
    ],
)
def test_other_files_are_refused_and_leave_nothing(
    name, content, message, official, tmp_path
):
    (official / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepared(official, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["/elsewhere", "../../elsewhere", "n0144\xff"])
def test_a_label_that_is_no_synset_names_no_folder(name, official, tmp_path):
    """In the list and in the kit alike: nothing is written outside the data folder."""
    outside = tmp_path / "elsewhere"
    label = str(outside) if name == "/elsewhere" else name
    rows = np.array([(1, label, 0), (2, label, 0)], META)
    stream = io.BytesIO()
    savemat(stream, {"synsets": rows[:, None]})
    pack({**devkit(), KIT_META: stream.getvalue()}, official / DEVKIT)
    with pytest.raises(DataError, match="is no synset such as n01440764"):
        prepared(official, tmp_path / "data")
    (official / LIST).write_text("\n".join([label] * 3), encoding="latin1")
    with pytest.raises(DataError, match="is no synset such as n01440764"):
        prepared(official, tmp_path / "data")
    assert not outside.exists()


def test_without_files_it_says_which_to_fetch(official, tmp_path):
    with pytest.raises(DataError, match="ILSVRC2012_devkit_t12.tar.gz into one folder"):
        prepare(pictures(), data_dir=tmp_path)
    (official / TRAIN).unlink()
    with pytest.raises(DataError, match="there is no .*ILSVRC2012_img_train.tar"):
        prepared(official, tmp_path / "data")


# --- Downsampled ----------------------------------------------------------------------

SMALL = Downsampled(
    "imagenet4", 4, (6, 2), 3, ("train_data_batch_1", "train_data_batch_2")
)


def batches() -> tuple[dict[str, bytes], list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    files, images, labels = {}, [], []
    for name, count in (*((n, 3) for n in SMALL.batches), ("val_data", 2)):
        images.append(rng.integers(0, 256, (count, 4, 4, 3), np.uint8))
        labels.append(rng.integers(0, 3, count))
        planes = images[-1].transpose(0, 3, 1, 2).reshape(count, -1)
        mean = planes.mean(axis=0)
        content = {"data": planes, "labels": (labels[-1] + 1).tolist(), "mean": mean}
        files[name] = pickle.dumps(content)
    return files, images, labels


def test_pickled_batches_become_arrays_on_disk(tmp_path):
    files, images, labels = batches()
    archive = pack(files, tmp_path / "batches")
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
        ({"labels": [0, 1, 2]}, r"labels 0\.\.2, expected 1\.\.3"),
        ({"labels": [1, 2, 4]}, r"labels 1\.\.4, expected 1\.\.3"),
        ({"labels": [0.5, 1, 2]}, "labels are float64"),
        ({"data": np.zeros((2, 48), np.uint8), "labels": [1, 1]}, "5 images, expected"),
    ],
)
def test_other_batches_are_refused_and_leave_nothing(change, message, tmp_path):
    files, _, _ = batches()
    content = {**pickle.loads(files["train_data_batch_2"]), **change}
    files["train_data_batch_2"] = pickle.dumps(content)
    archive = pack(files, tmp_path / "batches")
    with pytest.raises(DataError, match=message):
        prepare(arrays(SMALL), archive=archive, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_absent_one_says_how_to_prepare_it(tmp_path):
    with pytest.raises(DataError, match="prepare imagenet32 --archive FOLDER"):
        load(DOWNSAMPLED["imagenet32"], tmp_path)
    with pytest.raises(DataError, match="asks for a login"):
        prepare(arrays(SMALL), data_dir=tmp_path)
