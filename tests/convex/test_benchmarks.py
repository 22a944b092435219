"""The committed configs, the benchmarks of their runs, and docs/convex.md."""

import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from benchmarks import convex, convex_grid
from configs.convex import base
from jaxcomp.convex import averages, experiment, problems, rates, runner
from jaxcomp.convex import runner as record
from jaxcomp.core.units import bytes_text
from jaxcomp.data.partition import PARTITIONS
from jaxcomp.runs.table import Evaluation
from tests.convex.small import small

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
    assert set(config.keys()) == set(base.get_config().keys())
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
    assert f"--config=configs/convex/{path.name} --workdir=" in header
    monkeypatch.setattr(experiment, "solve", lambda problem: None)  # it takes a while
    sent = experiment.build(config.lock()).traffic.wire[0]
    assert f"; {bytes_text(sent)} a step." in header


@pytest.mark.slow
@each_config
def test_a_config_runs(path, tmp_path):
    config = config_in(path)
    config.update(problem="breast_cancer", train_for="2 steps", seeds=1)
    assert len(runner.run(config.lock(), tmp_path).rows) == 1


def test_the_plot_and_the_levels(tmp_path):
    rows = [
        Evaluation(0, t, t / 10, 8 * t, 1 / t, 2 / t, 0.1, 0.5, t, t)
        for t in (10, 20, 30)
    ]
    found = [convex._joined("random", "d_psgd", "method", [row]) for row in rows]
    convex.draw(tmp_path / "a.png", found)
    assert (tmp_path / "a.png").stat().st_size > 10_000
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


def test_the_grid_as_a_command(tmp_path, monkeypatch, capsys):
    """What the runs find is given here: half as many steps for twice the rate."""

    def measured(config, grid):
        assert config.train_for == "7 steps"
        sent = {"d_psgd": 1000.0}.get(config.mixer, 10.0)
        steps = [80.0, 100.0, 120.0, 200.0, math.nan]
        return [
            convex_grid.Run(a, tau, sent, [s / a for s in steps], end=1e-3)
            for a, tau in grid.pairs
        ]

    monkeypatch.setattr(convex_grid, "measure", measured)
    arguments = ["--a", "1", "2", "--tau", "500", "--train-for", "7 steps"]
    found = convex_grid.main([*arguments, "--out", str(tmp_path)])
    assert len(found) == 4
    shown = capsys.readouterr().out
    assert "  1e-02 d_psgd         2   500      40     40 kB" in shown
    assert "  1e-02 choco_sorted   2   500      40     400 B" in shown
    assert "  1e-04 choco_sorted not reached" in shown
    header, *lines = (tmp_path / "convex_grid.csv").read_text().splitlines()
    assert header.startswith("partition,config,mixer,a,tau,step_bytes,steps_to_0.01,")
    assert len(lines) == 8
    last = "sorted,choco_sorted,choco(gamma=0.06),2,500,10,40.0,50.0,60.0,100.0,,0.001"
    assert lines[-1] == last


def test_mistakes_of_the_commands_are_one_message(tmp_path):
    with pytest.raises(SystemExit, match="unknown convex problem 'digit'"):
        convex_grid.main(["--problem", "digit"])
    with pytest.raises(SystemExit, match="not a duration: '3'"):
        convex.main(["--runs", str(tmp_path), "--train-for", "3"])


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


@pytest.mark.parametrize(
    "name",
    [
        *problems.REGISTRY,
        *rates.REGISTRY,
        *averages.REGISTRY,
        *PARTITIONS,
        *record.Evaluation._fields,
    ],
)
def test_every_name_is_in_the_document(name):
    assert f"`{name}" in DOCUMENT
