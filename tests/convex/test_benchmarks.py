"""The committed configs, and the benchmarks of their runs."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from benchmarks import convex, convex_grid
from jaxcomp.convex import problems, solve
from jaxcomp.core.units import bytes_text
from jaxcomp.training.programs import run_traffic
from tests.training.small import built

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "convex").glob("*.py"))
CONFIGS = [path for path in CONFIGS if path.stem != "__init__"]
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def config_in(path: Path) -> ConfigDict:
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["get_config"]()


@each_config
def test_a_config_says_what_it_is_and_what_it_sends(path, monkeypatch):
    config = config_in(path)
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
    assert f"--config=configs/convex/{path.name} --workdir=" in header
    least = problems.load("breast_cancer")  # the optimum of digits takes a while
    place = "jaxcomp.training.tasks.logistic_regression"
    monkeypatch.setattr(sys.modules[place], "solve", lambda _: solve(least))
    traffic, _ = run_traffic(built(config))
    assert f"; {bytes_text(traffic.wire)} a step." in header


@pytest.mark.slow
@each_config
def test_a_config_runs(path, tmp_path):
    config = config_in(path)
    config.update(dataset="breast_cancer", train_for="2 steps")
    assert "ema_suboptimality" in convex.trained(config, tmp_path)


def test_levels_are_read_off_straight_lines_of_the_logarithm():
    values = [1.0, 1e-2, 1e-1, 1e-4]
    crossing = convex_grid.crossing
    np.testing.assert_allclose(crossing([0, 10, 20, 30], values, 1e-1), 5)
    np.testing.assert_allclose(crossing([0, 10, 20, 30], values, 1e-3), 26.6666667)
    assert crossing([0, 10, 20, 30], values, 1e-2) == 10
    assert math.isnan(crossing([0, 10, 20], [1.0, math.nan, math.nan], 1e-2))
