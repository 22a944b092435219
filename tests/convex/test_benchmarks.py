"""The committed configs, the benchmarks of their runs, and docs/convex.md."""

import math
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from benchmarks import convex, convex_grid
from configs.convex import base
from jaxcomp.convex import problems, solve
from jaxcomp.core.units import bytes_text
from jaxcomp.training.programs import run_traffic
from tests.training.small import built

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "convex.md").read_text()
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


def test_the_plot_and_the_levels(tmp_path):
    steps = np.array([10.0, 20.0, 30.0])
    run = {"step": steps, "epoch": steps / 10, "bytes_left": 8 * steps}
    run |= {"ema_suboptimality": 1 / steps, "consensus_distance": steps}
    other = run | {"ema_suboptimality": 3 / steps}
    found = convex._joined("random", "d_psgd", "method", [run, other])
    assert (found[1].lowest, found[1].suboptimality) == (1 / 20, 2 / 20)
    convex.draw(tmp_path / "a.png", found)
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert convex.reached(found, 2 / 20) == found[1]
    assert convex.reached(found, 1e-9) is None


def test_levels_are_read_off_straight_lines_of_the_logarithm():
    values = [1.0, 1e-2, 1e-1, 1e-4]
    crossing = convex_grid.crossing
    np.testing.assert_allclose(crossing([0, 10, 20, 30], values, 1e-1), 5)
    np.testing.assert_allclose(crossing([0, 10, 20, 30], values, 1e-3), 26.6666667)
    assert crossing([0, 10, 20, 30], values, 1e-2) == 10
    assert math.isnan(crossing([0, 10, 20], [1.0, math.nan, math.nan], 1e-2))


def test_the_grid_as_a_command(tmp_path, monkeypatch):
    """What the runs find is given here: half as many steps for twice the rate."""

    def trained(config, folder):
        assert config.train_for == "7 steps"
        a = config.learning_rate * 500 / 1797
        steps = np.array([80.0, 100.0, 120.0, 200.0]) / a
        left = {"d_psgd": 1000.0}.get(config.mixer, 10.0)
        above = np.array([3e-3, 1e-3, 3e-4, 2e-4])
        return {"step": steps, "bytes_left": left * steps, "ema_suboptimality": above}

    monkeypatch.setattr(convex_grid, "trained", trained)
    arguments = ["--a", "1", "2", "--tau", "500", "--train-for", "7 steps"]
    found = convex_grid.main([*arguments, "--out", str(tmp_path)])
    assert len(found) == 4
    header, *lines = (tmp_path / "convex_grid.csv").read_text().splitlines()
    assert header.startswith("partition,config,mixer,a,tau,step_bytes,steps_to_0.003,")
    assert len(lines) == 8
    last = "sorted,choco_top_k,choco(gamma=0.06),2,500,10,40.0,50.0,60.0,,0.0002"
    assert lines[-1] == last


def test_the_commands_of_the_document_exist():
    found = re.findall(r"^    python (.*)$", DOCUMENT, re.MULTILINE)
    assert len(found) >= 5
    keys = base.get_config().keys()
    for command in found:
        program, *words = shlex.split(command)
        if program == "-m":
            assert (ROOT / f"{words[0].replace('.', '/')}.py").exists(), command
            continue
        assert (ROOT / program).exists(), command
        for name, value in (word.removeprefix("--").split("=", 1) for word in words):
            assert name in ("config", "workdir") or name.split(".")[1] in keys, command
            assert name != "config" or (ROOT / value).exists(), command
