"""Settings that change during a run, and the optimiser's state that goes with them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from jaxcomp import training
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import Clock, is_clock
from jaxcomp.runs.keys import KEYS
from jaxcomp.training import optimizers
from jaxcomp.training.segments import make_segments
from jaxcomp.training.state import carried
from jaxcomp.training.tasks import regime_of
from jaxcomp.transforms.distributed import distributed
from jaxcomp.transforms.make import make_exchange
from tests.tiers import tiers
from tests.training.small import (
    assert_same_state,
    built,
    rows,
    small_config,
    train_with_stops,
)

EXAMPLES = 1280  # ten steps of small_config
LOWER = {"learning_rate": 0.01}
WHOLE = (
    ("0 epochs", {"optimizer": "sgd(momentum=0.9)", "learning_rate": 0.2}),
    ("3 steps", {"learning_rate": 0.05, "weight_decay": 0.0}),
    ("7 steps", {"optimizer": "adam", "learning_rate": 0.01, "clip": "local(limit=1)"}),
    ("15 steps", {"optimizer": "adamw", "schedule": "constant"}),
)


@pytest.fixture(autouse=True)
def _promotion():
    """optax counts in integers and multiplies them by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def regimes(*pairs: Any, of_model: Any = (), **changes: Any) -> Any:
    config = small_config(regime=pairs, **changes)
    return make_segments(config, EXAMPLES, of_model)


def test_settings_stay_until_they_change():
    found = regimes(*WHOLE)
    assert [regime.first for regime in found.each] == [0, 3, 7, 15]
    assert [found.number(step) for step in (0, 2, 3, 6, 7, 14, 15, 99)] == [
        *(0, 0, 1, 1, 2, 2, 3, 3),
    ]
    assert [step for step in range(20) if found.begins(step)] == [3, 7, 15]
    kept = [
        (r.config.optimizer, r.config.learning_rate, r.config.weight_decay)
        for r in found.each
    ]
    assert kept == [
        ("sgd(momentum=0.9)", 0.2, 5e-4),
        ("sgd(momentum=0.9)", 0.05, 0.0),
        ("adam", 0.01, 0.0),
        ("adamw", 0.01, 0.0),
    ]
    assert str(found.each[1]) == (
        "from step 4 on: learning_rate=0.05, weight_decay=0.0"
    )


def test_without_a_regime_there_is_one():
    found = regimes()
    assert len(found.each) == 1
    assert found.number(10**6) == 0
    later = regimes(("1.5 epochs", LOWER))
    assert [regime.first for regime in later.each] == [0, 15]
    assert later.each[0].config.learning_rate == 0.1


def test_a_model_brings_its_own_and_a_config_may_go_on():
    own_regime = (("0 epochs", {"learning_rate": 0.3}), ("2 epochs", LOWER))
    last = ("3 epochs", {"weight_decay": 0.0})
    found = regimes("model", last, of_model=own_regime)
    assert [r.config.learning_rate for r in found.each] == [0.3, 0.01, 0.01]
    assert [regime.first for regime in found.each] == [0, 20, 30]
    found = regimes("model", of_model=regime_of(small_config(model="resnet8")))
    assert [regime.first for regime in found.each] == [0, 810, 1220, 1640]
    assert [r.config.weight_decay for r in found.each] == [1e-4, 1e-4, 0.0, 0.0]
    with pytest.raises(UserError, match="the model brings none"):
        built(small_config(regime=("model",)))


def test_only_what_a_model_brings_may_begin_after_the_run():
    """A short run of a model does without its later regimes."""
    short = small_config(model="resnet8", regime=("model",), mapper="vmap")
    assert built(short).total_steps < built(short).segments.each[1].first
    late = ("200 epochs", LOWER)
    with pytest.raises(UserError, match="regime '200 epochs' begins after step 2200"):
        built(small_config(model="resnet8", regime=("model", late), mapper="vmap"))


@pytest.mark.parametrize(("word", "count"), [("model", 3), ("", 1)])
def test_a_command_may_give_a_single_word(word, count):
    config: Any = {**small_config().to_dict(), "regime": word}
    brought = (("1 epoch", LOWER), ("2 epochs", {"clip": "local(limit=1)"}))
    assert len(make_segments(ConfigDict(config), EXAMPLES, brought).each) == count
    with pytest.raises(UserError, match="made of pairs"):
        make_segments(ConfigDict({**config, "regime": "models"}), EXAMPLES, brought)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["30 epochs"], "made of pairs"),
        ([("30 epochs", {})], "made of pairs"),
        ([("", LOWER)], "made of pairs"),
        ([("30 epoks", LOWER)], "unknown unit"),
        ([("0 epoks", LOWER)], "unknown unit"),
        ([("1 epoch", {"batch_size": 9})], "regime '1 epoch': a batch of 9 does not"),
        ([("1 epoch", {"batch_size": 0})], "regime '1 epoch': batch_size is a whole"),
        ([("1 epoch", {"batch_size": 2000})], "2000 is more than 1280 examples"),
        ([("15 steps", {"batch_size": 64})], "step 16 is 1.5 epochs into the run"),
        ([("1 epoch", {"image_size": -8})], "regime '1 epoch': image_size is a whole"),
        ([("1 epoch", {"accumulate": 2})], "regime '1 epoch': accumulate does not"),
        ([("1 epoch", {"optimiser": "adam"})], "Did you mean 'optimizer'"),
        ([("1 epoch", {"learning_rate": "high"})], "learning_rate is a number"),
        ([("1 epoch", {"learning_rate": -1.0})], "regime '1 epoch': learning_rate is"),
        ([("2 epochs", LOWER), ("1 epoch", LOWER)], "a later one is later"),
        ([("1 epoch", LOWER), ("1 epoch", LOWER)], "a later one is later"),
        ([("1 epoch", {"optimizer": "one_bit_adam"})], "begin with it"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(pairs, words):
    with pytest.raises(UserError, match=words):
        regimes(*pairs)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "adan"}, "Did you mean 'adam'"),
        ({"optimizer": "adamw", "decay_at": "gradient"}, "decay_at"),
        ({"decay": "Dens_0"}, "fits no parameter"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
    ],
    ids=str,
)
def test_every_regime_is_checked_before_the_run(settings, words):
    with pytest.raises(UserError, match=words):
        built(small_config(regime=(("1 epoch", settings),)))


def test_the_rate_of_each_step_is_that_of_its_regime():
    setup = built(small_config(regime=WHOLE, schedule="polynomial", mapper="vmap"))
    total = setup.total_steps
    for step, peak in {0: 0.2, 2: 0.2, 3: 0.05, 7: 0.01, 14: 0.01}.items():
        expected = peak * (1 - step / total)
        assert setup.rate_on_host(step) == pytest.approx(expected, rel=1e-5)
    assert setup.rate_on_host(20) == pytest.approx(0.01)


# --- What becomes of the state of an optimiser ----------------------------------------

PARAMS = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}


@functools.cache
def chain(optimizer: str, clips: bool) -> Any:
    made = optimizers.build(
        optimizer,
        optimizers.REGISTRY,
        "optimizer",
        optimizers.OptimizerSetting(optax.constant_schedule(0.1), 0.01),
    )
    links = [distributed(make_exchange("exact", memory="none")), made]
    return optimizers.chained([optax.clip_by_global_norm(1.0), *links][not clips :])


def filled(state: Any) -> Any:
    """The state with other numbers, all clocks at 5."""

    def of(leaf: Any) -> Any:
        return Clock(jnp.int32(5)) if is_clock(leaf) else leaf + 3

    return jax.tree.map(of, state, is_leaf=is_clock)


def moments(state: Any) -> list[Any]:
    """Arrays of the optimiser, which is last, but its clocks."""
    leaves = jax.tree.leaves(state[-1], is_leaf=is_clock)
    return [leaf for leaf in leaves if not is_clock(leaf)]


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ("sgd", "sgd(momentum=0.5)", True),
        ("adam", "adamw", True),
        ("adam", "lamb", True),
        ("sgd", "adam", False),
        ("adam", "sgd", False),
        ("sgd", "lars", False),  # whose momentum is a thousandth of that
    ],
)
def test_arrays_of_the_same_name_and_shape_go_on(before, after, stays):
    old = filled(chain(before, clips=False).init(PARAMS))
    fresh = chain(after, clips=True).init(PARAMS)
    found = carried(old, fresh)
    assert jax.tree.structure(found) == jax.tree.structure(fresh)
    assert all(
        int(leaf.step) == 5
        for leaf in jax.tree.leaves(found, is_leaf=is_clock)
        if is_clock(leaf)
    )
    expected = moments(old if stays else fresh)
    assert len(moments(found)) == len(expected) > 0
    for a, b in zip(moments(found), expected, strict=True):
        np.testing.assert_array_equal(a, b)


# --- Whole runs -----------------------------------------------------------------------

RUNS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({}, (2,)),
    ({"ema": 0.9}, (2, 2)),
    ({"mixer": "local_sgd(h=2)"}, (1, 2)),
    ({"mapper": "pmap"}, (2, 1)),
]


@pytest.mark.parametrize(
    ("changes", "stops"), tiers(RUNS, lambda run: not run[0]), ids=str
)
def test_a_run_goes_on_to_the_bit_in_any_regime(
    changes, stops, tmp_path, monkeypatch, capsys
):
    """Stopped where a regime ends, and within one."""
    changes = {"train_for": "5 steps", "mapper": "vmap", **changes}
    others = {"optimizer": "adam", "clip": "local(limit=1)", **LOWER}
    short = (WHOLE[0], ("2 steps", others))
    config = small_config(regime=short, log_every=1, **changes)
    whole = training.train_and_evaluate(config, tmp_path / "whole")
    said = capsys.readouterr().out
    begun = "optimizer='adam', clip='local(limit=1)', learning_rate=0.01"
    assert f"from step 3 on: {begun}" in said
    assert "compiling for top_k(keep=0.1) (regime 2)" in said
    parts = train_with_stops(config, tmp_path / "parts", stops, monkeypatch)
    assert_same_state(whole.state, parts.state)
    steps = [rows(tmp_path / part / "steps.csv") for part in ("whole", "parts")]
    assert steps[0] == steps[1]
    rates = [float(row["learning_rate"]) for row in steps[0]]
    assert rates[1] > 0.1 > 0.01 >= rates[2]
    assert "ScaleByAdamState" in str(jax.tree.structure(whole.state.opt_state))


def test_keys_are_those_of_a_config():
    config = small_config()
    assert set(KEYS) == {*config}
