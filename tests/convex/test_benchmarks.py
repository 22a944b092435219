"""The committed configs, and what the benchmarks make of their runs."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import convex, convex_grid
from configs.convex import base
from jaxcomp.convex import runner
from jaxcomp.convex.record import Row
from jaxcomp.report.convex_plot import Block, plot_suboptimality
from tests.convex.small import small

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "convex").glob("*.py"))
CONFIGS = [path for path in CONFIGS if path.stem != "__init__"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_says_what_it_is_and_runs(path, tmp_path):
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    config = scope["get_config"]()
    assert set(config.keys()) == set(base.get_config().keys())
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
    assert f"--config=configs/convex/{path.name} --workdir=" in header
    config.update(problem="breast_cancer", train_for="2 steps", seeds=1)
    assert len(runner.run(config.lock(), tmp_path).rows) == 1


def test_the_plot_and_the_levels():
    rows = [Row(0, t, t / 10, 8 * t, 1 / t, 2 / t, 0.1, 0.5) for t in (10, 20, 30)]
    found = [convex._joined("random", "d_psgd", "method", [row]) for row in rows]
    line = next(line for line in convex.LINES if line.config == convex.BASELINE)
    figure = plot_suboptimality(
        [Block("At random", [convex._curve(found, "random", line)])]
    )
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "sent by one worker since the start",
        "steps",
    ]
    assert len(figure.axes[0].lines) == 1
    assert convex.reached(found, 1 / 20) == found[1]
    assert convex.reached(found, 1e-9) is None


def test_a_pair_of_the_grid_is_the_run_of_its_config(tmp_path, monkeypatch):
    """Among others in one program, and with rules that are read from tables."""
    monkeypatch.setattr(convex_grid, "LEVELS", (0.1, 1e-9))
    rules = {"learning_rate": "decay(a=2, tau=1000)", "average": "quadratic(tau=1000)"}
    rows = runner.run(small(**rules), tmp_path).rows
    grid = convex_grid.Grid(a=(1, 2), tau=(1000, 4000))
    found = convex_grid.measure(small(), grid)
    assert [(run.a, run.tau) for run in found] == grid.pairs
    same = found[grid.pairs.index((2, 1000))]
    assert same.end == pytest.approx(rows[-1].suboptimality, rel=1e-4)
    assert same.step_bytes == rows[-1].bytes_sent / rows[-1].step
    before, after = next(
        (row.step - 10, row.step) for row in rows if row.suboptimality <= 0.1
    )
    assert before < same.steps[0] <= after
    assert math.isnan(same.steps[1])
    assert len({run.end for run in found}) == 4


def test_levels_are_read_off_straight_lines_of_the_logarithm():
    values = [1.0, 1e-2, 1e-1, 1e-4]
    crossing = convex_grid.crossing
    np.testing.assert_allclose(crossing([0, 10, 20, 30], values, 1e-1), 5)
    np.testing.assert_allclose(crossing([0, 10, 20, 30], values, 1e-3), 26.6666667)
    assert crossing([0, 10, 20, 30], values, 1e-2) == 10
    assert math.isnan(crossing([0, 10, 20], [1.0, math.nan, math.nan], 1e-2))


def test_the_grid_as_a_command(tmp_path, capsys):
    short = ["--problem", "breast_cancer", "--train-for", "20 steps"]
    pairs = ["--a", "1", "--tau", "1000", "--eval-every", "10 steps"]
    found = convex_grid.main([*short, *pairs, "--out", str(tmp_path)])
    assert len(found) == 4
    lines = (tmp_path / "convex_grid.csv").read_text().splitlines()
    assert lines[0].startswith("partition,config,a,tau,step_bytes,steps_to_0.01,")
    assert [line.split(",")[:4] for line in lines[1:]] == [
        [partition, config, "1", "1000"]
        for partition in ("random", "sorted")
        for config in ("d_psgd", "choco_top_k")
    ]
    assert "the fewest steps to a level" in capsys.readouterr().out
