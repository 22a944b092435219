"""What a file of a sweep says, and the runs that follow from it."""

import pytest

from configs.sweeps import digits
from jaxcomp.cli.config import load_config, override
from jaxcomp.cli.sweeps import Sweep, differing, make_plan, product, read_sweep
from jaxcomp.core.errors import UserError

CONFIG = "configs/default.py"


def configure(words):
    return override(load_config(CONFIG), words)


def planned(*settings, **others):
    return make_plan(Sweep(CONFIG, settings, **others), configure)


def test_what_a_run_sets_comes_after_the_parts_of_a_config():
    whole = "configs/default.py,parts/dgc"
    plan = make_plan(
        Sweep(whole, [{"memory": "none"}, {"seed": 3}]),
        lambda words: override(load_config(whole), words),
    )
    memories = [run.config["memory"] for run in plan]
    assert memories == ["none", "dgc(momentum=0.9, nesterov=True)"]


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
        ([3], "each of settings is keys with their values, not 3"),
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
    ("words", "message"),
    [
        ("always=5", "always is keys with their values, not 5"),
        ("best=5", "best is a string, not 5"),
    ],
)
def test_wrong_parts_are_named_with_what_is_wrong(tmp_path, words, message):
    text = f"def get_sweep(): return Sweep('configs/default.py', [], {words})"
    text = f"from jaxcomp.cli.sweeps import Sweep\n{text}"
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(UserError, match=rf"a\.py.*{message}"):
        read_sweep(tmp_path / "a.py")
