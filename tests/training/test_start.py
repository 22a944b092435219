"""Runs that begin with the weights of another run."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import PerWorker
from jaxcomp.runs.folder import RunError
from jaxcomp.training.checkpoints import _part, read_start, steps_in
from jaxcomp.training.tasks import Variables
from tests.training.small import built, rows, small_config

SMALL = {"keep_last": 3, "checkpoint_every": "4 steps"}
# Of the run that begins: nothing moves its parameters.
STILL = {"learning_rate": 0.0, "schedule": "constant", "train_for": "2 steps"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    return training.train_and_evaluate(small_config(**SMALL), folder)


def host(state):
    """The parameters, and the statistics of the first worker."""
    state = parallel.to_host(state)
    return Variables(state.params, jax.tree.map(lambda x: x[0], state.stats.value))


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_as_many_checkpoints_are_kept_as_the_config_says(source):
    steps = steps_in(source.folder / "checkpoints")
    best = (source.folder / "checkpoints/best").read_text()
    assert {16, 20, 22} <= set(steps) <= {16, 20, 22, int(best.removeprefix("step_"))}


def test_weights_are_those_of_the_checkpoint_and_the_rest_is_fresh(
    source, tmp_path, capsys
):
    start = read_start(str(source.folder), built(small_config(**STILL)))
    same(start.variables, host(source.state))
    folder = shutil.copytree(source.folder, tmp_path / "other@home" / "run")
    config = small_config(**STILL, init_from=str(folder))
    result = training.train_and_evaluate(config, tmp_path / "new")
    same(host(result.state).params, host(source.state).params)
    assert result.steps == 2
    noted = json.loads((tmp_path / "new/environment.json").read_text())["init_from"]
    assert noted == {"step": 22, "checkpoint": f"{folder}/checkpoints/step_00000022"}
    # It goes on without the other one, but no longer knows the distance from it.
    config.train_for = "3 steps"
    training.train_and_evaluate(config, tmp_path / "new")
    shutil.rmtree(folder)
    config.train_for = "4 steps"
    longer = training.train_and_evaluate(config, tmp_path / "new")
    same(host(longer.state).params, host(source.state).params)
    table = rows(tmp_path / "new/metrics.csv")
    assert [(row["step"], row["distance"]) for row in table] == [
        *(("2", "0"), ("3", "0"), ("4", "")),
    ]
    assert "WARNING: no distance from the start any more" in capsys.readouterr().out
    with pytest.raises(
        RunError, match=r"init_from: the folder has '.*', you ask for ''"
    ):
        training.train_and_evaluate(small_config(**STILL), tmp_path / "new")


def test_another_checkpoint_is_named_behind_the_folder(source):
    setup, folder = built(small_config(**STILL)), source.folder
    assert read_start(f"{folder}@16", setup).step == 16
    best = (folder / "checkpoints/best").read_text()
    assert read_start(f"{folder}@best", setup).checkpoint.name == best
    with pytest.raises(
        RunError, match=r"no checkpoint '7'; it holds those of steps .*16"
    ):
        read_start(f"{folder}@7", setup)
    with pytest.raises(UserError, match=r"'best', 'last' or the number .* not 'first'"):
        read_start(f"{folder}@first", setup)
    with pytest.raises(
        RunError, match=r"nowhere holds no checkpoint .* holds none yet"
    ):
        read_start("nowhere", setup)


def test_another_model_is_refused_before_the_folder_is_made(source, tmp_path):
    given = {**STILL, "model": "tiny(width=3)", "init_from": str(source.folder)}
    for begin in (training.train_and_evaluate, training.dry_run):
        with pytest.raises(RunError, match="is of another model") as error:
            begin(small_config(**given), tmp_path / "new")
        assert re.search(r"params\S+: there \[.*2\], here \[.*3\]", str(error.value))
    assert not (tmp_path / "new").exists()


def test_a_dry_run_names_the_checkpoint(source):
    config = small_config(**STILL, init_from=f"{source.folder}@20")
    text = training.dry_run(config, "nowhere")
    assert f"weights of {source.folder}/checkpoints/step_00000020\n" in text


def test_of_models_of_the_workers_own_the_mean_is_taken():
    like = {"w": jax.ShapeDtypeStruct((2,), np.float32)}
    own = {"params.value.w": np.array([[0.0, 2.0], [4.0, 4.0]], np.float32)}
    found = _part("params", PerWorker(like).value, {**own, "stats.w": np.zeros(2)})
    assert found.problems == []
    np.testing.assert_array_equal(found.tree["w"], [2.0, 3.0])
    assert _part("stats", {}, {}).tree == {}
    assert _part("params", like, {}).problems == ["only here: params.w"]
