"""What a file of a sweep says, and the runs that follow from it."""

from pathlib import Path

import pytest

from configs.sweeps import digits
from jaxcomp.cli.config import load_config, override
from jaxcomp.cli.sweeps import Sweep, differing, make_plan, product, read_sweep
from jaxcomp.core.errors import UserError

PROGRAM = (
    "from jaxcomp.cli.sweeps import Sweep\n"
    "def get_sweep(): return Sweep('configs/default.py', []"
)
CONFIG = "configs/default.py"
YAML = """
config: configs/default.py
always: {train_for: 2 epochs}
best: min test_loss
grid:
  method:
    exact: {exchange: exact, memory: none}
    signs: {compressor: sign}
  learning_rate: [0.1, 0.2]
runs:
  - {seed: 3, batch_size: 32}
"""


def configure(words):
    return override(load_config(CONFIG), words)


def planned(*settings, **others):
    return make_plan(Sweep(CONFIG, settings, **others), configure)


def test_a_program_and_yaml_say_the_same(tmp_path):
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "a.py").write_text(
        "from jaxcomp.cli.sweeps import Setting, Sweep, product\n"
        "def get_sweep():\n"
        "    methods = {'exact': {'exchange': 'exact', 'memory': 'none'},\n"
        "               'signs': {'compressor': 'sign'}}\n"
        "    grid = product(method=methods, learning_rate=(0.1, 0.2))\n"
        "    return Sweep('configs/default.py', always={'train_for': '2 epochs'},\n"
        "                 settings=[*grid, Setting({'seed': 3, 'batch_size': 32})],\n"
        "                 best='min test_loss')\n"
    )
    assert read_sweep(tmp_path / "a.yaml") == read_sweep(tmp_path / "a.py")


def test_a_sweep_takes_a_composed_config(tmp_path):
    (tmp_path / "a.yaml").write_text(YAML.replace("default.py", "default.py,parts/dgc"))
    sweep = read_sweep(tmp_path / "a.yaml")
    assert sweep.config == "configs/default.py,parts/dgc"
    plan = make_plan(sweep, lambda words: override(load_config(sweep.config), words))
    memories = [run.config["memory"] for run in plan]
    # What the grid sets comes after the part.
    assert memories[0] == "none"
    assert memories[-1] == "dgc(momentum=0.9, nesterov=True)"


def test_the_sweep_of_the_digits_has_eight_methods_with_three_seeds():
    runs = make_plan(digits.get_sweep(), configure)
    assert len(runs) == len({run.name for run in runs}) == 24
    assert len({run.setting.labels["method"] for run in runs}) == 8
    assert {run.config["seed"] for run in runs} == {0, 1, 2}
    assert {"compressor", "exchange", "seed"} <= set(differing(runs))
    assert "train_for" not in differing(runs)


def test_a_run_is_known_by_its_config():
    """What is added later leaves the names of the others; another config is another."""
    one = planned({"seed": 1})
    several = planned({"seed": 0}, {"seed": 1})
    assert one[0].name == several[1].name
    changed = planned({"seed": 1}, always={"train_for": "1 epoch"})
    assert changed[0].name != one[0].name
    assert (changed[0].config["train_for"], changed[0].config["seed"]) == ("1 epoch", 1)


def test_values_of_all_types_reach_the_config():
    policy = (("*/bias", "none"), ("size<99", "cast"))
    run = planned({"policy": policy, "breakdown": True, "weight_decay": 0.5})[0]
    assert run.config["policy"] == [list(pair) for pair in policy]
    assert (run.config["breakdown"], run.config["weight_decay"]) == (True, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([{"sed": 1}], "no key 'sed'. Did you mean 'seed'"),
        ([{"seed": "two"}], "seed is a whole number"),
        ([{"seed": 1}, {"seed": 1}], "two runs of the sweep are the same"),
        ([{"seed": 0}, {}], "two runs of the sweep are the same"),
        ([], "no run"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(settings, message):
    with pytest.raises(UserError, match=message):
        planned(*settings)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"seed": []}, "seed has no values"),
        ({"seed": {}}, "seed has no values"),
        ({"method": {"a": "sign"}}, "sets keys of the config"),
        ({"seed": (0, 1), "method": {"a": {"seed": 2}}}, "seed is set by two axes"),
    ],
)
def test_wrong_axes_are_refused(axes, message):
    with pytest.raises(UserError, match=message):
        product(**axes)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "x = 1", "no function get_sweep"),
        ("a.py", "def get_sweep(): return 3", "returns 3, not a"),
        ("a.py", f"{PROGRAM}, always=5)", "always is keys with their values, not 5"),
        (
            "a.py",
            f"{PROGRAM}, best=5)",
            "best is a string, not 5",
        ),
        ("a.py", "def (", "not a Python file"),
        ("a.yaml", "config: [", "it is no YAML"),
        ("a.yaml", "- 1", "has the parts"),
        ("a.yaml", "config: a\ngird: {}", "no 'gird'. Did you mean 'grid'"),
        ("a.yaml", "config: a", "a grid or a list of runs"),
        ("a.yaml", "config: a\nruns: {}", "runs is a list"),
        ("a.yaml", "config: a\nruns: [3]", "each of runs"),
        ("a.yaml", "config: 5\nruns: []", "config is a string, not 5"),
        (
            "a.yaml",
            "config: a\nruns: []\nalways: 5",
            "always is keys with their values",
        ),
        ("a.yaml", "config: a\nruns: []\nbest: 5", "best is a string, not 5"),
        ("a.yaml", "config: a\ngrid: &g {x: *g}", "text, numbers, lists and .* Circul"),
        ("a.yaml", "config: a\ngrid: {x: 2026-01-01}", "text, numbers, .* type date"),
        ("a.toml", "", "is a .py or a .yaml file"),
    ],
)
def test_wrong_files_are_named_with_what_is_wrong(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        read_sweep(tmp_path / name)
    assert name in str(raised.value)


def test_a_file_that_is_not_there_is_an_error():
    with pytest.raises(UserError, match="nowhere.py: No such file"):
        read_sweep(Path("nowhere.py"))
