"""Which batch a step takes: of pictures that are decoded, and of data on devices."""

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomp import data, parallel
from jaxcomp.training import feed as loading
from jaxcomp.training.feed import train_feed
from tests.data.class_folders import write_folders
from tests.training.small import built, small_config


def config_of(root: Path, **changes: Any) -> Any:
    """Three steps in an epoch, of two workers."""
    settings = {"batch_size": 4, "log_every": 1, "augment": "flip", "mapper": "vmap"}
    spec = f"class_folders(path='{root}', size=8)"
    return small_config(dataset=spec, **settings, **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folders(tmp_path_factory.mktemp("pictures") / "images")


def test_batches_are_those_of_the_shares_in_their_order(root):
    task = built(config_of(root, seed=5)).task
    images = data.load(f"class_folders(path='{root}', size=8, seed=5)").train_images
    feed = train_feed(task, local=slice(1, 2), start=2)
    for epoch, step in ((0, 2), (1, 0), (1, 1)):
        found, labels = next(feed)
        places = task.shares(epoch)[step, 1:2]
        np.testing.assert_array_equal(labels, task.train[1][places])
        np.testing.assert_array_equal(found, images.in_epoch(epoch)[places])
    feed.close()


def test_a_worker_decodes_its_share_alone(root, monkeypatch):
    """Of a process with one of two workers: the others' pictures are never read."""
    task = built(config_of(root)).task
    seen: list[int] = []
    decode = data.Pictures._decode
    monkeypatch.setattr(
        data.Pictures,
        "_decode",
        lambda self, place: seen.append(place) or decode(self, place),
    )
    feed = train_feed(task, local=slice(0, 1), start=0)
    next(feed)
    feed.close()
    mine = task.shares(0)[:, 0].ravel().tolist()
    assert len(seen) >= 2
    assert set(seen) <= set(mine)


def test_a_broken_picture_is_named_where_its_batch_is_due(tmp_path):
    root = write_folders(tmp_path / "images")
    file = root / "train" / "cup" / "3.png"
    file.write_bytes(file.read_bytes()[:100])
    task = built(config_of(root)).task
    place = task.train[0].shape[0] - 1
    step = int(np.argwhere(task.shares(0) == place)[0, 0])
    feed = train_feed(task, local=slice(0, 2), start=0)
    for _ in range(step):
        next(feed)
    with pytest.raises(data.DataError, match=f"{file} cannot be read as a picture"):
        next(feed)


def test_what_stays_on_disk_is_read_ahead_too(tmp_path):
    """A map of a file gives the batches of the same array in memory."""
    task = built(small_config()).task
    file = tmp_path / "images.npy"
    np.save(file, task.train[0])
    mapped = task._replace(train=(np.load(file, mmap_mode="r"), task.train[1]))
    feeds = [train_feed(t, local=slice(0, 2), start=9) for t in (task, mapped)]
    for _ in range(4):
        (images, _), (same, _) = map(next, feeds)
        np.testing.assert_array_equal(images, same)
    feeds[1].close()


# --- Data that stays on the devices gives the batches that would  ---------------------


@pytest.mark.parametrize("mapper", ["pmap", "vmap"])
def test_batches_are_the_same_wherever_the_data_is(mapper, monkeypatch):
    setup = built(small_config(mapper=mapper))
    workers = setup.workers
    feed = functools.partial(train_feed, local=workers.local, start=10)
    sent = list(itertools.islice(loading.loaded(feed, setup.task, workers), 3))
    monkeypatch.setattr(loading, "stays_on_device", lambda *_: True)
    kept = list(itertools.islice(loading.loaded(feed, setup.task, workers), 3))
    for one, other in zip(sent, kept, strict=True):
        images, labels = other
        assert isinstance(images, jax.Array)
        assert images.dtype == np.uint8
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(parallel.to_host(x), parallel.to_host(y))
            assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


def test_small_sets_stay_on_accelerators_only(tmp_path):
    small = np.zeros((4, 2), np.uint8)
    np.save(tmp_path / "a.npy", small)
    on_disk = np.load(tmp_path / "a.npy", mmap_mode="r")
    large = np.lib.stride_tricks.as_strided(small, (2**31,), (0,))

    def on(platform: str, *arrays: np.ndarray) -> bool:
        devices = np.array([SimpleNamespace(platform=platform)])
        workers = SimpleNamespace(mesh=SimpleNamespace(devices=devices))
        return loading.stays_on_device(arrays, workers)  # type: ignore[arg-type]

    assert on("gpu", small, small)
    assert not on("cpu", small)
    assert not on("gpu", small, on_disk)
    assert not on("gpu", small, large)
