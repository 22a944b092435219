"""Every config, shrunk, is built, and in the slow tier really runs.

In the default tier runs what tests/training/small.py makes of the default config.
"""

from pathlib import Path
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict

from configs import default
from jaxcomp import training
from jaxcomp.make import compressor_for
from tests.training.small import built

CONFIGS = sorted((Path(__file__).resolve().parent.parent / "configs").glob("*.py"))
CONFIGS = [path for path in CONFIGS if path.stem != "__init__"]


def load(path: Path) -> ConfigDict:
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["get_config"]()


def shrunk(path: Path) -> Any:
    """Its own method and schedule, on small images with the tiny model."""
    config = load(path)
    config.dataset = "digits(size=8)"
    config.model = "tiny(width=8)"
    config.pad = 1
    config.train_for = "2 steps"
    config.warmup = ""
    return config.lock()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_names_what_exists(path):
    setup = built(shrunk(path))
    state = jax.eval_shape(setup.fresh)
    assert jax.tree.leaves(state.params)
    config: Any = load(path)
    used = compressor_for(config.exchange, config.compressor)
    assert setup.stages.at(10_000).compressor == used


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_runs_for_two_steps(path, tmp_path):
    # Adam's counts are integers that optax multiplies by floats.
    with jax.numpy_dtype_promotion("standard"):
        result = training.train_and_evaluate(shrunk(path), tmp_path)
    assert result.steps == 2


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_changes_known_keys_and_says_what_it_is(path):
    assert set(load(path).keys()) == set(default.get_config().keys())
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
    assert "TODO" not in header
