"""Checkpoints: whole or not used, kept as promised, and exact."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import parallel
from jaxcomp.core.types import PerWorker
from jaxcomp.training import CheckpointError
from jaxcomp.training.checkpoints import open_checkpoints
from tests.workers import abstract


def state(step):
    """Per-worker parts, several dtypes, a scalar and an empty part."""
    rng = np.random.default_rng(step)
    crew = parallel.setup(4, "pmap")
    fresh = {
        "params": {"w": rng.normal(size=(3, 2)).astype(np.float32)},
        "kept": PerWorker({"e": np.zeros(5, np.float32)}),
        "half": jnp.ones(3, jnp.bfloat16),
        "step": jnp.int32(step),
        "nothing": (),
    }
    spread = parallel.spread(fresh, crew)
    own = rng.normal(size=(4, 5)).astype(np.float32)
    spread["kept"] = parallel.place(PerWorker({"e": own}), crew, PerWorker(0))
    return spread


def same(a, b):
    jax.tree.map(
        np.testing.assert_array_equal, parallel.to_host(a), parallel.to_host(b)
    )
    assert jax.tree.map(lambda x: x.sharding, a) == jax.tree.map(
        lambda x: x.sharding, b
    )


def save(checkpoints, *args):
    checkpoints.begin(*args)
    checkpoints.finish()


def like():
    return abstract(state(0))


def test_round_trip_of_every_workers_part(tmp_path):
    """The regression test of the replicated-residual trap, through the disk."""
    checkpoints = open_checkpoints(tmp_path)
    position = {"seconds": 0.1 + 0.2, "best": None}
    save(checkpoints, state(3), position, 3, False, False)
    restored = checkpoints.restore(like(), "latest")
    assert restored is not None
    same(restored.state, state(3))
    assert (restored.progress, restored.step) == (position, 3)
    kept = np.asarray(parallel.to_host(restored.state)["kept"].value["e"])
    assert len(np.unique(kept, axis=0)) == 4


def test_an_empty_folder_restores_nothing(tmp_path):
    assert open_checkpoints(tmp_path / "none").restore(like(), "latest") is None
    assert open_checkpoints(tmp_path).restore(like(), "best") is None


def test_latest_best_and_kept_ones_stay(tmp_path):
    checkpoints = open_checkpoints(tmp_path, newest=2)
    for step in range(1, 8):
        save(checkpoints, state(step), {}, step, step == 2, step == 3)
    names = sorted(p.name for p in tmp_path.glob("step_*"))
    assert names == [f"step_{s:08d}" for s in (2, 3, 6, 7)]
    best = checkpoints.restore(like(), "best")
    assert best is not None
    assert best.step == 3
    same(best.state, state(3))


def a_data_file(folder):
    """The largest file of the arrays."""
    files = [p for p in (folder / "arrays").rglob("*") if p.is_file()]
    return max(files, key=lambda p: p.stat().st_size)


def cut(folder):
    path = a_data_file(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(folder):
    path = a_data_file(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "a file cut off": cut,
    "one flipped bit": flip,
    "a file missing": lambda folder: a_data_file(folder).unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half a manifest": lambda folder: (folder / "manifest.json").write_text('{"a": '),
    "no position": lambda folder: (folder / "position.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage):
    checkpoints = open_checkpoints(tmp_path)
    for step in (1, 2):
        save(checkpoints, state(step), {}, step, False, False)
    DAMAGE[damage](tmp_path / "step_00000002")
    with pytest.warns(RuntimeWarning, match="step_00000002"):
        restored = checkpoints.restore(like(), "latest")
    assert restored is not None
    same(restored.state, state(1))


def test_a_damaged_step_can_be_saved_again(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, state(1), {}, 1, False, False)
    shutil.rmtree(tmp_path / "step_00000001" / "arrays")
    save(checkpoints, state(1), {}, 1, False, False)
    restored = checkpoints.restore(like(), "latest")
    assert restored is not None
    same(restored.state, state(1))


def test_another_state_is_named_leaf_by_leaf(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, state(1), {}, 1, False, False)
    other = like()
    other["params"]["v"] = other["params"].pop("w")
    with pytest.raises(CheckpointError) as error:
        checkpoints.restore(other, "latest")
    assert "only in the checkpoint: params.w" in str(error.value)
    assert "only in this run: params.v" in str(error.value)


def test_names_that_two_arrays_share_are_refused(tmp_path):
    """Stored under one name, one of the two would come back twice."""
    both = {"a": {"b": jnp.zeros(2)}, "a.b": jnp.ones(2)}
    with pytest.raises(CheckpointError, match=r"'a\.b'.*\['a\.b'\]: rename it"):
        save(open_checkpoints(tmp_path), both, {}, 1, False, False)


def test_nothing_on_disk_is_a_pickle(tmp_path):
    save(open_checkpoints(tmp_path), state(1), {"seconds": 1.5}, 1, False, False)
    folder = tmp_path / "step_00000001"
    assert json.loads((folder / "position.json").read_text()) == {"seconds": 1.5}
    for path in folder.rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith(b"\x80\x04")
