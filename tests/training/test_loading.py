"""Data that stays on the devices gives the batches that would be sent there."""

import functools
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxcomp import parallel
from jaxcomp.training import feed as loading
from jaxcomp.training.feed import train_feed
from tests.training.small import built, small_config


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
