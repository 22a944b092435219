"""Every config, shrunk, really runs."""

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from configs import default
from jaxcomp import training

CONFIGS = sorted((Path(__file__).resolve().parent.parent / "configs").glob("*.py"))
CONFIGS = [path for path in CONFIGS if path.stem != "__init__"]


def load(path: Path) -> ConfigDict:
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["get_config"]()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_runs_for_two_steps(path, tmp_path):
    """Its own method and schedule, on small images with the tiny model."""
    config = load(path)
    config.dataset = "digits(size=8)"
    config.model = "tiny(width=2)"
    config.pad = 1
    config.train_for = "2 steps"
    result = training.train_and_evaluate(config.lock(), tmp_path)
    assert result.steps == 2


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_changes_known_keys_and_says_what_it_is(path):
    assert set(load(path).keys()) == set(default.get_config().keys())
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
