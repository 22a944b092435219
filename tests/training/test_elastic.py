"""Runs that go on with another number of workers."""

import json
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from configs import choco, default
from jaxcomp import training
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import PerWorker, is_per_worker
from jaxcomp.parallel.placing import spread_spec
from jaxcomp.training.checkpoints import make_resize, note_change, open_checkpoints
from jaxcomp.training.state import TrainState
from jaxcomp.transforms.distributed import DistributedState
from tests.training.small import built, small_config, stop_at

SEEDS = 4  # of long runs


def newest(folder: Any, config: Any, *, allowed: bool = True) -> TrainState:
    """The newest checkpoint, for the workers of a config."""
    setup = built(config)
    like = spread_spec(jax.eval_shape(setup.fresh), setup.workers)
    restore = open_checkpoints(folder / "checkpoints").restore
    found = restore(like, "latest", make_resize(setup, allowed=allowed))
    assert found is not None
    return found.state


def changes(folder: Any) -> list[Any]:
    return json.loads((folder / "environment.json").read_text())["workers_changed"]


def mean(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64).mean(0), tree)


def test_a_run_goes_on_with_fewer_workers_if_it_may(tmp_path, monkeypatch, capsys):
    four = small_config(workers=4, mapper="vmap")
    with monkeypatch.context() as patched:
        stop_at(patched, 5)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(four, tmp_path)
    two = small_config(workers=2, mapper="vmap")
    with pytest.raises(UserError, match="number of workers, add --config.elastic=True"):
        training.train_and_evaluate(two, tmp_path)
    with pytest.raises(UserError, match="of 4 workers.* says 2: add --config.elastic"):
        newest(tmp_path, two, allowed=False)

    before, after = newest(tmp_path, four), newest(tmp_path, two)
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    kept = [state.opt_state[0].exchange.residual.value for state in (before, after)]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), *map(mean, kept)
    )
    assert all(np.any(x) and len(x) == 2 for x in jax.tree.leaves(kept[1]))

    capsys.readouterr()
    two.elastic = True
    result = training.train_and_evaluate(two, tmp_path)
    assert "from here on there are 2 workers; there were 4" in capsys.readouterr().out
    assert result.steps == 22
    assert changes(tmp_path) == [{"step": 5, "before": 4, "now": 2}]
    assert json.loads((tmp_path / "config.json").read_text())["workers"] == 2
    assert result.state.step == 22
    # From now on it is a run of two workers, and needs no permission.
    two.elastic = False
    assert training.train_and_evaluate(two, tmp_path).test_accuracy > 0
    assert len(changes(tmp_path)) == 1


def test_each_example_of_a_batch_keeps_its_carry():
    carry = np.arange(24.0).reshape(4, 2, 3)  # workers, examples, what is carried
    info = DistributedState(SimpleNamespace(step=1), (), None)  # type: ignore[arg-type]
    state = TrainState({}, PerWorker({"mean": np.ones((4, 1))}), PerWorker(carry), info)
    resize = make_resize(SimpleNamespace(method=None), allowed=True)  # type: ignore
    for workers in (8, 2, 1):
        new = resize(state, workers)
        assert new.carry.value.shape == (workers, 8 // workers, 3)
        np.testing.assert_array_equal(
            new.carry.value.reshape(8, 3), carry.reshape(8, 3)
        )


def test_changes_that_a_checkpoint_has_undone_are_not_told(tmp_path):
    (tmp_path / "environment.json").write_text('{"method": "gather"}')
    for step, before, now in ((5, 8, 4), (9, 4, 2), (9, 4, 1)):
        note_change(tmp_path, step, before, now)
    assert [(x["step"], x["now"]) for x in changes(tmp_path)] == [(5, 4), (9, 1)]
    assert json.loads((tmp_path / "environment.json").read_text())["method"] == "gather"


@pytest.mark.slow
@pytest.mark.parametrize("base", [default, choco], ids=["exchange", "mixer"])
def test_eight_four_eight_workers_learn_as_well_as_eight(base, tmp_path, monkeypatch):
    """A third of the run each; mean accuracies differ by a point at most.

    There are 360 test images: at one seed, four of them are more than a point.
    """

    def train(folder: Any, seed: int, workers: int, stop: int | None = None) -> Any:
        config = base.get_config()
        config.update(workers=workers, mapper="vmap", elastic=True, seed=seed)
        with monkeypatch.context() as patched:
            if stop is None:
                return training.train_and_evaluate(config, folder)
            stop_at(patched, stop)
            with pytest.raises(training.Interrupted):
                training.train_and_evaluate(config, folder)
        return None

    accuracies: list[tuple[float, float]] = []
    for seed in range(SEEDS):
        whole = train(tmp_path / f"whole_{seed}", seed, 8)
        third = whole.steps // 3
        folder = tmp_path / f"changed_{seed}"
        train(folder, seed, 8, third)
        train(folder, seed, 4, third)
        changed = train(folder, seed, 8)
        assert changed.steps == whole.steps
        assert [x["now"] for x in changes(folder)] == [4, 8]
        assert is_per_worker(changed.state.params) == (base is choco)
        accuracies.append((whole.test_accuracy, changed.test_accuracy))
    without, with_changes = np.mean(accuracies, axis=0)
    assert abs(with_changes - without) <= 0.01, accuracies
