"""Checkpoints that are written while the run goes on: whole, last, and never lost."""

import threading

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training
from jaxcomp.checkpoint import save
from jaxcomp.core import files
from jaxcomp.runs.folder import RunError
from jaxcomp.training import loop
from jaxcomp.training.checkpoints import open_checkpoints
from tests.training.small import assert_same_state, small_config
from tests.workers import abstract


@pytest.fixture
def held(monkeypatch):
    """Manifests wait until this event is set."""
    event = threading.Event()
    write_manifest = files.write_manifest

    def late(*args):
        assert event.wait(60)
        write_manifest(*args)

    monkeypatch.setattr(save.files, "write_manifest", late)
    yield event
    event.set()


def start(seed):
    crew = parallel.setup(4, "pmap")
    rng = np.random.default_rng(seed)
    # Large enough for jax to give its memory away without a copy.
    return crew, parallel.spread({"w": rng.normal(size=(512, 1024)).astype("f")}, crew)


def test_the_run_goes_on_and_the_manifest_comes_last(tmp_path, held):
    """The next steps take the memory of the state, and its checkpoint stays exact."""
    crew, state = start(0)
    expected, like = parallel.to_host(state), abstract(state)
    step = parallel.map_step(
        lambda state, _: {"w": state["w"] * 2 + 1},
        crew,
        in_axes=(None, 0),
        out_axes=None,
        donate_argnums=(0,),
    )
    expected = {"w": np.array(expected["w"])}
    checkpoints = open_checkpoints(tmp_path)
    none = parallel.place(np.zeros(4, np.float32), crew, 0)
    checkpoints.begin(state, {"at": 1}, 1, False, True)
    for _ in range(5):
        state = jax.block_until_ready(step(state, none))
    folder = tmp_path / "step_00000001"
    assert not (folder / "manifest.json").exists()
    assert not (tmp_path / "best").exists()
    held.set()
    checkpoints.finish()
    checkpoints.close()
    assert (folder / "manifest.json").exists()
    restored = checkpoints.restore(like, "best")
    assert restored is not None
    np.testing.assert_array_equal(parallel.to_host(restored.state)["w"], expected["w"])


def test_until_then_the_one_before_is_used(tmp_path, held):
    held.set()
    _, state = start(0)
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.begin(state, {}, 1, False, False)
    checkpoints.finish()
    held.clear()
    checkpoints.begin(state, {}, 2, False, False)
    with pytest.warns(RuntimeWarning, match="step_00000002: it was not finished"):
        restored = open_checkpoints(tmp_path).restore(abstract(state), "latest")
    assert restored is not None
    assert restored.step == 1
    held.set()
    checkpoints.close()
    assert save.damage(tmp_path / "step_00000002") is None


@pytest.mark.filterwarnings("ignore:skipping damaged checkpoint")
def test_what_goes_wrong_in_the_thread_is_raised(tmp_path, monkeypatch):
    """At the next checkpoint or the end of the run, as the error that it was."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save.files, "write_manifest", full)
    with pytest.raises(RunError, match="cannot be written: No space"):
        training.train_and_evaluate(small_config(train_for="2 steps"), tmp_path)
    monkeypatch.undo()
    training.train_and_evaluate(small_config(train_for="2 steps"), tmp_path)


def test_an_error_of_the_run_waits_for_what_was_begun(tmp_path, monkeypatch):
    """The checkpoint of step 11 is whole, although step 12 failed meanwhile."""
    take_step, taken = loop.take_step, []

    def failing(*args):
        taken.append(1)
        if len(taken) == 12:
            raise KeyError("of the run")
        return take_step(*args)

    monkeypatch.setattr(loop, "take_step", failing)
    with pytest.raises(KeyError, match="of the run"):
        training.train_and_evaluate(small_config(), tmp_path / "a")
    monkeypatch.undo()
    assert save.damage(tmp_path / "a/checkpoints/step_00000011") is None
    resumed = training.train_and_evaluate(small_config(), tmp_path / "a")
    whole = training.train_and_evaluate(small_config(), tmp_path / "b")
    assert_same_state(resumed.state, whole.state)
