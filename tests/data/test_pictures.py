"""Pictures that are decoded when a batch needs them."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxcomp import data
from jaxcomp.core.errors import UserError
from jaxcomp.data import DataError, Pictures, take
from tests.data.class_folders import write_folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "images")


def load(root: Path, **arguments: int | float) -> data.Dataset:
    given = "".join(f", {key}={value}" for key, value in arguments.items())
    return data.load(f"class_folders(path='{root}', size=8{given})")


def test_class_folders_are_numbered_by_name_and_files_sorted(root):
    dataset = load(root)
    assert dataset.num_classes == 3
    assert dataset.train_images.shape == (12, 8, 8, 3)
    assert dataset.train_labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.test_images.shape == (6, 8, 8, 3)
    assert dataset.train_images.where(0) == str(root / "train" / "apple" / "0.png")
    assert dataset.name == f"class_folders(path='{root}', size=8)"


def test_a_test_image_is_the_middle_of_the_resized_picture(root):
    dataset = load(root, resize=10, test_size=5)
    with Image.open(root / "val" / "bear" / "1.png") as image:
        width, height = image.size
        side = min(width, height) / 2  # 5 of 10
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        wanted = image.resize((5, 5), Image.Resampling.BILINEAR, box=box)
        np.testing.assert_array_equal(dataset.test_images[3], np.asarray(wanted))


def test_places_have_any_shape_and_slices_are_places(root):
    images = load(root).test_images
    block = images[np.array([[0, 3, 5], [2, 2, 1]])]
    assert block.shape == (2, 3, 8, 8, 3)
    np.testing.assert_array_equal(block[1, 1], images[2])
    np.testing.assert_array_equal(images[1:3], np.stack([images[1], images[2]]))
    assert images[np.zeros((0, 2), int)].shape == (0, 2, 8, 8, 3)
    assert (len(images), images.dtype) == (6, np.uint8)


def test_the_seed_the_epoch_and_the_place_decide_and_nothing_else(root):
    """Not the batch in which a picture is, nor the thread."""
    images, labels = load(root).train_images, load(root).train_labels
    together, found = take((images, labels), np.arange(12), 3)
    np.testing.assert_array_equal(found, labels)
    for place in (11, 0, 5):
        [alone] = take((images,), np.array(place), 3)
        np.testing.assert_array_equal(alone, together[place])
    assert (take((images,), np.arange(12), 4)[0] != together).any()
    other = load(root, seed=1).train_images
    assert (take((other,), np.arange(12), 3)[0] != together).any()


def test_grey_pictures_and_those_with_a_palette_become_coloured(root):
    file = root / "val" / "apple" / "0.png"
    with Image.open(file) as image:
        image.convert("L").save(file)
    grey = load(root).test_images[0]
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])


@pytest.mark.parametrize("content", [b"", b"no picture", None])
def test_a_broken_picture_is_named(content, root):
    file = root / "train" / "bear" / "2.png"
    file.write_bytes(file.read_bytes()[:-40] if content is None else content)
    with pytest.raises(DataError, match=f"{file} cannot be read as a picture"):
        load(root).train_images[:]


def test_pictures_of_one_size_are_taken_as_they_are():
    png = io.BytesIO()
    Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3)).save(png, "png")

    def pictures(*shape: int) -> Pictures:
        whole = (4, *shape)
        read, where = (lambda place: png.getvalue()), (lambda place: f"number {place}")
        return Pictures(read, where, whole, data.pictures.as_it_is)  # type: ignore[arg-type]

    assert pictures(2, 3, 1)[2].ravel().tolist() == list(range(6))
    with pytest.raises(DataError, match=r"number 1 is of \(2, 3, 1\), the others of"):
        pictures(3, 3, 1)[1]


def test_folders_that_are_no_data_set_are_refused(root, tmp_path):
    with pytest.raises(DataError, match="there is no folder .*nowhere/train"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="at least the 8 pixels that are cut out"):
        load(root, resize=7)
    (root / "val" / "zebra").mkdir()
    with pytest.raises(DataError, match="has the class 'zebra', which train has not"):
        load(root)
    (root / "val" / "zebra").rmdir()
    for file in (root / "train").rglob("*.png"):
        file.unlink()
    with pytest.raises(DataError, match="holds no pictures"):
        load(root)
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="has no folders, of which each is a class"):
        load(tmp_path / "empty")


def test_imagenet_is_class_folders_by_another_name(root, tmp_path):
    found = data.load(f"imagenet(path='{root}', size=8)")
    assert found.name == f"imagenet(path='{root}', size=8)"
    expected = load(root).test_images[:]
    np.testing.assert_array_equal(found.test_images[:], expected)
    with pytest.raises(
        DataError, match=r"imagenet is not here: looked for .*imagenet\(path='FOLDER'\)"
    ):
        data.load("imagenet", data_dir=tmp_path)
