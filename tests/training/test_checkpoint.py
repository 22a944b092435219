"""Checkpoints: whole or not used, kept, resumed, resized and begun from."""

import json
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from configs import choco, default
from jaxcomp import parallel, training
from jaxcomp.checkpoint import save
from jaxcomp.core import files
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import PerWorker, is_per_worker
from jaxcomp.parallel.placing import spread_spec
from jaxcomp.runs.folder import RunError, check_config
from jaxcomp.runs.open_run import keep_programs
from jaxcomp.training import CheckpointError, loop
from jaxcomp.training.checkpoints import (
    make_resize,
    open_checkpoints,
    read_start,
    steps_in,
)
from jaxcomp.training.console import headline
from jaxcomp.training.state import TrainState
from jaxcomp.training.tasks import Variables
from jaxcomp.transforms.distributed import DistributedState
from tests.training.small import built, rows, small_config, stop_at
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


def keep(checkpoints, *args):
    checkpoints.begin(*args)
    checkpoints.finish()


def like():
    return abstract(state(0))


def test_round_trip_of_every_workers_part(tmp_path):
    """The regression test of the replicated-residual trap, through the disk."""
    checkpoints = open_checkpoints(tmp_path)
    position = {"seconds": 0.1 + 0.2, "best": None}
    keep(checkpoints, state(3), position, 3, False, False)
    restored = checkpoints.restore(like(), "latest")
    assert restored is not None
    same(restored.state, state(3))
    assert (restored.progress, restored.step) == (position, 3)
    kept = np.asarray(parallel.to_host(restored.state)["kept"].value["e"])
    assert len(np.unique(kept, axis=0)) == 4


def test_latest_best_and_kept_ones_stay(tmp_path):
    checkpoints = open_checkpoints(tmp_path, newest=2)
    for step in range(1, 8):
        keep(checkpoints, state(step), {}, step, step == 2, step == 3)
    names = sorted(p.name for p in tmp_path.glob("step_*"))
    assert names == [f"step_{s:08d}" for s in (2, 3, 6, 7)]
    best = checkpoints.restore(like(), "best")
    assert best is not None
    assert best.step == 3
    same(best.state, state(3))


def flip(folder):
    files = [p for p in (folder / "arrays").rglob("*") if p.is_file()]
    path = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {  # of other kinds in tests/test_checkpoint.py
    "one flipped bit": flip,
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "no position": lambda folder: (folder / "position.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage):
    checkpoints = open_checkpoints(tmp_path)
    for step in (1, 2):
        keep(checkpoints, state(step), {}, step, False, False)
    DAMAGE[damage](tmp_path / "step_00000002")
    with pytest.warns(RuntimeWarning, match="step_00000002"):
        restored = checkpoints.restore(like(), "latest")
    assert restored is not None
    same(restored.state, state(1))


def test_names_that_two_arrays_share_are_refused(tmp_path):
    """Stored under one name, one of the two would come back twice."""
    both = {"a": {"b": jnp.zeros(2)}, "a.b": jnp.ones(2)}
    with pytest.raises(CheckpointError, match=r"'a\.b'.*\['a\.b'\]: rename it"):
        keep(open_checkpoints(tmp_path), both, {}, 1, False, False)


def test_nothing_on_disk_is_a_pickle(tmp_path):
    keep(open_checkpoints(tmp_path), state(1), {"seconds": 1.5}, 1, False, False)
    folder = tmp_path / "step_00000001"
    assert json.loads((folder / "position.json").read_text()) == {"seconds": 1.5}
    for path in folder.rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith(b"\x80\x04")


# --- Checkpoints that are written while the run goes on: whole, l ---------------------


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


def test_what_goes_wrong_in_the_thread_is_raised(tmp_path, monkeypatch):
    """At the next checkpoint or the end of the run, as the error that it was."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save.files, "write_manifest", full)
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.begin(state(1), {}, 1, False, False)
    with pytest.raises(OSError, match="No space"):
        checkpoints.finish()


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
    assert save.damage(tmp_path / "a/checkpoints/step_00000011") is None


# --- What a resumed run needs: no second state, and no compiler -----------------------

CACHE = "jax_compilation_cache_dir"
LEAST = "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The settings of jax that a user has, with an empty home."""
    before = {name: getattr(jax.config, name) for name in (CACHE, LEAST)}
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(LEAST.upper(), raising=False)
    jax.config.update(CACHE, None)
    jax.config.update(LEAST, 1.0)
    compilation_cache.reset_cache()
    yield Path.home() / ".cache/jaxcomp/programs"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_settings_of_jax_come_first(own_cache, tmp_path, monkeypatch):
    assert keep_programs() == f"compiled programs are kept in {own_cache}"
    assert getattr(jax.config, LEAST) == 0
    jax.config.update(CACHE, str(tmp_path / "mine"))
    monkeypatch.setenv(LEAST.upper(), "3")
    jax.config.update(LEAST, 3.0)
    assert keep_programs() == f"compiled programs are kept in {tmp_path / 'mine'}"
    assert getattr(jax.config, LEAST) == 3
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert "JAX_ENABLE_COMPILATION_CACHE is off" in keep_programs()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def test_all_devices_are_counted_once_and_the_folder_says_how_many(tmp_path):
    """Another number of devices is then another config, and not a damaged run."""
    config = small_config(workers=0)
    plan = built(config)
    assert config.workers == 0
    assert f"8 workers (pmap on 8 of 8 {jax.default_backend()} devices)" in (
        headline(plan)
    )
    assert "(pmap on 2 of 8 cpu devices, 6 idle)" in headline(built(small_config()))
    (tmp_path / "config.json").write_text(json.dumps(plan.as_written))
    with pytest.raises(ValueError, match="workers: the folder has 8, you ask for 4"):
        check_config(tmp_path, built(small_config(workers=4)).as_written)


def test_a_folder_without_the_keys_that_came_later_goes_on(tmp_path):
    new = json.loads(small_config().to_json())
    added = "compute_dtype deterministic eval_batch_size platform"
    old = {key: value for key, value in new.items() if key not in added.split()}
    (tmp_path / "config.json").write_text(json.dumps(old))
    check_config(tmp_path, {**new, "platform": "cpu"})
    with pytest.raises(ValueError, match="deterministic: the folder has nothing, you"):
        check_config(tmp_path, {**new, "deterministic": True})


# --- Runs that begin with the weights of another run ----------------------------------

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


def same_start(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_as_many_checkpoints_are_kept_as_the_config_says(source):
    steps = steps_in(source.folder / "checkpoints")
    best = (source.folder / "checkpoints/best").read_text()
    assert {16, 20, 22} <= set(steps) <= {16, 20, 22, int(best.removeprefix("step_"))}


def test_weights_are_those_of_the_checkpoint_and_the_rest_is_fresh(
    source, tmp_path, capsys
):
    start = read_start(str(source.folder), built(small_config(**STILL)))
    same_start(start.variables, host(source.state))
    folder = shutil.copytree(source.folder, tmp_path / "other@home" / "run")
    config = small_config(**STILL, init_from=str(folder))
    result = training.train_and_evaluate(config, tmp_path / "new")
    same_start(host(result.state).params, host(source.state).params)
    assert result.steps == 2
    noted = json.loads((tmp_path / "new/environment.json").read_text())["init_from"]
    assert noted == {"step": 22, "checkpoint": f"{folder}/checkpoints/step_00000022"}
    # It goes on without the other one, but no longer knows the distance from it.
    shutil.rmtree(folder)
    config.train_for = "3 steps"
    longer = training.train_and_evaluate(config, tmp_path / "new")
    same_start(host(longer.state).params, host(source.state).params)
    table = rows(tmp_path / "new/metrics.csv")
    assert [row["distance"] for row in table] == ["0", ""]
    assert "WARNING: no distance from the start any more" in capsys.readouterr().out


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
        with pytest.raises(RunError, match="init_from: .* of another state") as error:
            begin(small_config(**given), tmp_path / "new")
        assert re.search(
            r"params\S+: checkpoint \S+\[.*2\], this run \S+\[.*3\]", str(error.value)
        )
    assert not (tmp_path / "new").exists()


# --- Runs that go on with another number of workers -----------------------------------

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
