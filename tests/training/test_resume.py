"""What a resumed run needs: no second state, and no compiler."""

import collections
import json
from pathlib import Path

import jax
import pytest
from jax._src import monitoring
from jax.core import Tracer
from jax.experimental.compilation_cache import compilation_cache

from jaxcomp import parallel, training
from jaxcomp.parallel.placing import spread_spec
from jaxcomp.runs.folder import describe
from jaxcomp.runs.open_run import keep_programs
from jaxcomp.training.plan import RunPlan
from tests.training.small import built, small_config, stop_at
from tests.workers import abstract

CACHE = "jax_compilation_cache_dir"
LEAST = "jax_persistent_cache_min_compile_time_secs"


@pytest.mark.parametrize("mapper", parallel.MAPPERS)
def test_the_spec_of_a_spread_state_is_that_of_the_state(mapper):
    setup = built(small_config(mapper=mapper))
    state = parallel.spread(setup.fresh(), setup.workers)
    like = spread_spec(jax.eval_shape(setup.fresh), setup.workers)
    wanted = abstract(state)
    assert jax.tree.structure(like) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(like), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)


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


def test_a_resumed_run_makes_no_fresh_state_and_compiles_nothing(
    own_cache, tmp_path, monkeypatch
):
    """What fits once fits again: beside the restored state there is no fresh one."""
    config, folder = small_config(), tmp_path / "run"
    with monkeypatch.context() as patched:
        stop_at(patched, 5)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(config, folder)
    assert any(own_cache.iterdir())
    jax.clear_caches()

    fresh = RunPlan.fresh

    def traced(*args):
        made = fresh(*args)
        assert all(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(made))
        return made

    monkeypatch.setattr(RunPlan, "fresh", traced)
    seen = collections.Counter()

    def listen(event: str, **_) -> None:
        seen[event.removeprefix("/jax/compilation_cache/")] += 1

    monitoring.register_event_listener(listen)
    try:
        training.train_and_evaluate(config, folder)
    finally:
        monitoring.unregister_event_listener(listen)
    assert seen["cache_hits"] > 0
    # What only the rest of the run needs, such as the evaluation, is compiled now.
    before = set(own_cache.iterdir())
    jax.clear_caches()
    training.train_and_evaluate(config, folder)
    assert set(own_cache.iterdir()) == before


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


def test_a_home_that_cannot_be_written_is_told(own_cache, tmp_path):
    (tmp_path / "home").write_text("a file")
    assert "compiled programs are not kept: " in keep_programs()
    assert getattr(jax.config, CACHE) is None


def test_all_devices_are_counted_once_and_the_folder_says_how_many(tmp_path, capsys):
    """Another number of devices is then another config, and not a damaged run."""
    config = small_config(workers=0, train_for="2 steps")
    result = training.train_and_evaluate(config, tmp_path)
    assert config.workers == 0
    assert f"8 workers (pmap on 8 of 8 {jax.default_backend()} devices)" in (
        capsys.readouterr().out
    )
    assert json.loads((tmp_path / "config.json").read_text())["workers"] == 8
    assert training.evaluate(config, tmp_path, "latest")["step"] == result.steps
    with pytest.raises(ValueError, match="workers: the folder has 8, you ask for 4"):
        training.train_and_evaluate(
            small_config(workers=4, train_for="2 steps"), tmp_path
        )


def test_a_folder_without_the_keys_that_came_later_goes_on(tmp_path, capsys):
    config = small_config(train_for="2 steps")
    training.train_and_evaluate(config, tmp_path)
    assert "(pmap on 2 of 8 cpu devices, 6 idle)" in capsys.readouterr().out
    path = tmp_path / "config.json"
    old = json.loads(path.read_text())
    added = "compute_dtype deterministic eval_batch_size matmul_precision platform"
    for key in added.split():
        del old[key]
    path.write_text(json.dumps(old))
    assert training.evaluate(config, tmp_path, "latest")["step"] == 2
    training.train_and_evaluate(
        small_config(train_for="2 steps", platform="cpu"), tmp_path
    )
    with pytest.raises(ValueError, match="deterministic: the folder has False, you"):
        training.train_and_evaluate(
            small_config(train_for="2 steps", deterministic=True), tmp_path
        )


def test_the_environment_of_a_run_has_the_flags_of_its_programs(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    assert describe()["variables"]["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
