"""Test pictures in rectangles near their forms."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from jaxcomp import data, parallel
from jaxcomp.core.errors import UserError
from jaxcomp.data import pictures as pictures_of
from jaxcomp.training.evaluation import make_evaluator
from jaxcomp.training.feed import eval_feed
from tests.data.class_folders import write_folders
from tests.training.small import built, small_config

# Rectangles of 8x16 to 8x8 to 16x8; pictures as width and height.
VIEW = "rectangular(size=8, resize=9, step=2)"
FORMS = {
    (40, 20): (8, 16),
    (30, 30): (8, 8),
    (31, 30): (8, 8),
    (20, 25): (10, 8),
    (60, 40): (8, 12),
    (90, 10): (8, 16),
    (10, 90): (16, 8),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders, whose test pictures have these forms."""
    root = write_folders(tmp_path_factory.mktemp("rectangles") / "images", test=1)
    rng = np.random.default_rng(1)
    for number, (width, height) in enumerate(FORMS):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(root / "val" / "bear" / f"form{number}.png")
    return root


def config_of(root: Path, **changes: Any) -> Any:
    usual = {"augment": "flip", "mapper": "vmap", "batch_size": 4, "eval_view": VIEW}
    usual["dataset"] = f"class_folders(path='{root}', size=8)"
    return small_config(**{**usual, **changes})


def images_of(root: Path) -> Any:
    return built(config_of(root)).task.test[0]


def test_each_picture_is_shown_in_the_rectangle_nearest_to_its_form(root):
    images = images_of(root)
    assert len(images.view.shapes) == 9
    shapes = {}
    for places, pictures in images.groups:
        for place in places:
            shapes[images.pictures.where(place)] = pictures.shape[1:3]
        assert pictures[:].shape == (len(places), *pictures.shape[1:])
        assert len(places) == len(pictures)
    assert len(shapes) == len(images) == 3 + len(FORMS)
    for number, wanted in enumerate(FORMS.values()):
        assert shapes[str(root / "val" / "bear" / f"form{number}.png")] == wanted


def test_a_view_is_the_middle_in_the_proportions_of_the_picture():
    """A slope in both directions stays a slope; what is lost is lost on both sides."""
    width, height = 96, 48
    across = np.tile(np.linspace(0, 255, width), (height, 1))
    down = np.tile(np.linspace(0, 255, height)[:, None], (1, width))
    pixels = np.stack([across, down, 0 * down], axis=-1).astype(np.uint8)
    for (tall, wide), resize, share in (
        ((8, 12), 8, (1, 0.75)),
        ((8, 12), 12, (2 / 3, 0.5)),
        ((8, 20), 8, (0.8, 1)),  # the picture is narrower: it is cut above and below
    ):
        view = pictures_of.middle((tall, wide), resize)
        found = view(Image.fromarray(pixels), None).astype(float)
        assert found.shape == (tall, wide, 3)
        for channel, axis, kept, count in (
            (0, 1, share[1], wide),
            (1, 0, share[0], tall),
        ):
            line = found[..., channel].mean(axis=1 - axis)
            centres = 0.5 + kept * ((np.arange(count) + 0.5) / count - 0.5)
            np.testing.assert_allclose(line, 255 * centres, atol=6)


def test_squares_are_those_of_the_usual_test(root):
    """A square picture, and class folders without the view, are shown alike."""
    images = images_of(root)
    usual = data.load(f"class_folders(path='{root}', size=8, resize=9)").test_images
    [(places, squares)] = [g for g in images.groups if g[1].shape[1:3] == (8, 8)]
    np.testing.assert_array_equal(squares[:], usual[places])


def test_an_evaluation_sees_each_picture_once_in_batches_of_one_shape(root):
    task = built(config_of(root)).task
    seen, shapes = [], set()
    for worker in (0, 1):
        local = slice(worker, worker + 1)
        for batch, weights in eval_feed(task, batch_size=4, workers=2, local=local):
            shapes.add(batch[0].shape)
            assert weights.shape == batch[1].shape == batch[0].shape[:2] == (1, 2)
            seen += batch[1][weights > 0].tolist()
    assert sorted(seen) == sorted(task.test[1].tolist())
    assert len(shapes) == len(task.test[0].groups) > 3


def one_by_one(setup: Any) -> tuple[float, float]:
    """Mean loss and share of hits, from batches of one picture."""
    score, wanted = jax.jit(setup.task.score), np.zeros(3)
    variables = setup.task.init(jax.random.fold_in(jax.random.key(0), 0))
    for part in data.parts_of(setup.task.test):
        for place in range(len(part[0])):
            one = tuple(array[[place]] for array in part)
            sums, _ = score(variables, {}, one, np.ones(1, np.float32))
            wanted += [float(x) for x in sums[:3]]
    loss, correct, examples = wanted
    assert examples == len(setup.task.test[0])
    return loss / examples, correct / examples


@pytest.fixture
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("_promotion")
def test_scores_are_those_of_the_pictures_one_by_one(root):
    setup = built(config_of(root))
    state = parallel.spread(setup.fresh(), setup.workers)
    found = make_evaluator(setup, state)(state)
    assert found[:2] == pytest.approx(one_by_one(setup), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "digits(size=8)"}, "pictures of several sizes .* all are of 8x8"),
        ({"eval_view": "rectangular(size=9, resize=8)"}, "at most the 8 pixels"),
        ({"model": "mlp"}, "cannot take pictures as .*rectangular.* make them"),
    ],
    ids=str,
)
def test_where_it_makes_no_sense_it_is_refused(root, changes, words):
    with pytest.raises(UserError, match=f"(?s){words}"):
        built(config_of(root, **changes))


def test_a_damaged_picture_is_named(tmp_path):
    root = write_folders(tmp_path / "images")
    file = root / "val" / "cup" / "1.png"
    file.write_bytes(b"nothing")
    with pytest.raises(data.DataError, match=f"{file} cannot be read as a picture"):
        _ = images_of(root).groups
