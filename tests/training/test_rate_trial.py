"""A trial of growing learning rates: the steps of the run, and what they suggest."""

import itertools
import json
import math

import jax
import numpy as np
import pytest

from jaxcomp import cli, parallel
from jaxcomp.training.rate_trial import LIMIT, Tried, make_trial, suggested, try_rates
from tests.training.small import built, small_config

SMALL = {"mapper": "vmap", "train_for": "2 epochs", "keep_warmup": ""}
USUAL = {"first": 1e-3, "last": 1e3, "steps": 60}
CONFIG = small_config(**SMALL)
# As in `USUAL`, so that the program is the same.
WORDS = ["find-rate", "--config=default", "--steps=60", "--from=1e-3", "--to=1e3"]
WORDS += [f"--config.{key}={CONFIG[key]}" for key in CONFIG if CONFIG[key] != ()]


@pytest.fixture(scope="module")
def tried():
    trial = make_trial(small_config(**SMALL), **USUAL)
    return list(try_rates(trial, lambda text: None))


def test_rates_grow_by_a_factor_until_the_loss_leaves_its_least(tried):
    rates = [one.rate for one in tried]
    ratios = {round(b / a, 6) for a, b in itertools.pairwise(rates)}
    assert ratios == {round(1e6 ** (1 / 59), 6)}
    assert rates[0] == pytest.approx(1e-3)
    assert 10 < len(tried) < 60
    *before, last = [one.smoothed for one in tried]
    assert not last <= LIMIT * min(before)
    least = itertools.accumulate(before, min)
    assert all(x <= LIMIT * low for x, low in zip(before, least, strict=True))


def test_what_is_suggested_is_between_doing_nothing_and_exploding(tried):
    found = suggested(tried)
    assert found is not None
    assert 1e-3 < found.steepest <= found.least < tried[-1].rate
    assert found.tenth == found.least / 10


def test_the_steps_are_those_of_the_run(tried):
    """The second loss is the one after a first step at the first rate."""
    config = small_config(**SMALL, learning_rate=1e-3, schedule="constant")
    setup = built(config)
    state = parallel.spread(setup.fresh(), setup.workers)
    axes = parallel.axes(state)
    step = parallel.map_step(
        setup.step(setup.stages.at(0)),
        setup.workers,
        in_axes=(axes, 0, 0),
        out_axes=(axes, 0),
    )
    losses = []
    for chosen in setup.task.shares(0)[:2]:
        batch = [array[chosen] for array in setup.task.train]
        state, metrics = step(state, *batch)
        losses.append(float(np.mean(jax.device_get(metrics.loss))))
    assert [one.loss for one in tried[:2]] == pytest.approx(losses, rel=1e-5)


def test_the_rates_are_those_of_the_key_and_scaled_as_the_run_scales_them():
    changes = {"lr_scaling": "linear", "warmup": "1 epoch", "schedule": "cosine"}
    trial = make_trial(small_config(**SMALL, **changes), **USUAL)
    assert trial.scaling == pytest.approx(2.0)
    for step in (0, 30, 59):
        there = trial.plan.rate_on_host(step)
        assert there == pytest.approx(2 * trial.rates[step], rel=1e-4)


def test_of_a_regime_the_beginning_stays():
    regime = (("0 epochs", {"optimizer": "adam"}), ("1 epoch", {"learning_rate": 1.0}))
    trial = make_trial(small_config(**SMALL, regime=regime), **USUAL)
    (only,) = trial.plan.segments.each
    assert only.config.optimizer == "adam"
    assert trial.plan.rate_on_host(59) == pytest.approx(1e3)


def curve(losses):
    return [Tried(i + 1, 2.0**i, x, x) for i, x in enumerate(losses)]


@pytest.mark.parametrize(
    "losses",
    [
        [2.0],
        [2.0, math.nan],
        [2.0 + 0.1 * i for i in range(20)],
        [2.0] * 20,
    ],
    ids=["one step", "not finite", "rising", "flat"],
)
def test_a_loss_that_does_not_fall_suggests_nothing(losses):
    assert suggested(curve(losses)) is None


def test_noise_of_the_first_steps_suggests_nothing():
    noise = [3.0, 1.0, 2.0, 2.0, 2.0]
    found = suggested(curve([*noise, *[2.0] * 10, 1.5, 1.0, 0.9, 1.4, 5.0]))
    assert found is not None
    assert found.least == 2.0**17
    assert found.steepest in (2.0**15, 2.0**16)


# --- The command ----------------------------------------------------------------------


def test_the_command_prints_a_table_and_leaves_no_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(WORDS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("method: ")
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert rows[0][0] == "1"
    assert sum(line.startswith("learning_rate=") for line in lines) in (0, 2)
    assert [*tmp_path.iterdir()] == []


def test_the_command_tells_programs_the_same(capsys):
    assert cli.main([*WORDS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"][0]["rate"] == pytest.approx(1e-3)
    assert found["scaling"] == 1
    assert found["suggested"] is None or found["suggested"].keys() == {
        *("steepest", "tenth", "least")
    }
