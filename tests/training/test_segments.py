"""Runs whose batch, pictures or optimiser change: segments, and their calendars."""

import functools
import itertools
import json
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from jaxcomp import data, training
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import Clock, is_clock
from jaxcomp.runs.keys import KEYS
from jaxcomp.training import optimizers
from jaxcomp.training.feed import train_feed
from jaxcomp.training.plan import settled
from jaxcomp.training.schedules import Horizon
from jaxcomp.training.segments import (
    Calendar,
    RunSegments,
    Segment,
    batches_from,
    make_segments,
)
from jaxcomp.training.state import carried
from jaxcomp.training.tasks import regime_of
from jaxcomp.transforms.distributed import distributed
from jaxcomp.transforms.make import make_exchange
from tests.data.class_folders import write_folders
from tests.tiers import tiers
from tests.training.small import (
    assert_same_state,
    built,
    rows,
    segments_of,
    small_config,
    train_with_stops,
)

EXAMPLES = 100


def horizon(batch: int) -> Horizon:
    return Horizon(EXAMPLES // batch, batch)


def calendar(*phases: tuple[int, int]) -> RunSegments:
    """RunSegments as pairs of the epoch in which they begin and their batch."""
    made = segments_of(horizon(phases[0][1]))
    for epoch, batch in phases[1:]:
        first = made.steps_of(f"{epoch} epochs")
        following = made.each[-1].calendar.then(first, horizon(batch))
        made = RunSegments((*made.each, Segment(first, {}, None, following)))
    return made


class Walked(NamedTuple):
    """A run taken step by step."""

    epochs: list[Fraction]  # before each step
    examples: list[int]
    batches: list[int]


def walked(phases: tuple[tuple[int, int], ...], epochs: int) -> Walked:
    found, examples = Walked([], [], []), 0
    for epoch in range(epochs):
        batch = next(b for first, b in reversed(phases) if first <= epoch)
        steps = EXAMPLES // batch
        for place in range(steps):
            found.epochs.append(epoch + Fraction(place, steps))
            found.examples.append(examples)
            found.batches.append(batch)
            examples += batch
    return found


RUNS = [
    ((0, 10),),
    ((0, 10), (2, 25)),
    ((0, 30), (1, 10), (5, 49)),
    ((0, 7), (3, 100), (4, 1)),
]


@pytest.mark.parametrize("phases", RUNS, ids=str)
def test_every_step_is_where_a_walk_finds_it(phases):
    made, there = calendar(*phases), walked(phases, epochs=8)
    for step, (epochs, examples, batch) in enumerate(zip(*there, strict=True)):
        assert made.epochs(step) == epochs
        assert made.epoch_at(step) == int(epochs) + 1
        assert made.examples(step) == examples
        assert made.batch_at(step) == batch
        assert made.steps_of(f"{step} steps", may_be_zero=True) == step
        assert made.steps_of(f"{examples} examples", may_be_zero=True) == step
    for epoch in range(8):
        assert made.end_of(epoch) == there.epochs.index(Fraction(epoch))


@pytest.mark.parametrize("phases", RUNS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_intervals_of_epochs_end_with_epochs(phases, length):
    made, there = calendar(*phases), walked(phases, epochs=8)
    ends = made.every({"x": f"{length} epochs"}, "x")
    found = [step for step in range(1, len(there.epochs)) if ends(step)]
    whole = [there.epochs.index(Fraction(e)) for e in range(length, 8, length)]
    assert found == whole
    assert made.epochs_every({"x": f"{length} epochs"}, "x") == length


def test_other_intervals_are_as_long_as_they_say_in_each_phase():
    made = calendar((0, 10), (2, 25))  # steps 0 to 19, and then 4 an epoch
    for text, expected in {
        "3 steps": [3, 6, 9, 12, 15, 18, 21, 24, 27],
        "50 examples": [5, 10, 15, 20, 22, 24, 26, 28],
        "0.5 epochs": [5, 10, 15, 20, 22, 24, 26, 28],
        "": [],
    }.items():
        ends = made.every({"x": text}, "x")
        assert [step for step in range(1, 29) if ends(step)] == expected


def test_another_batch_begins_with_an_epoch():
    one = Calendar(horizon(10))
    with pytest.raises(UserError, match=r"step 16 is 1.5 epochs .* example '2 epochs'"):
        one.then(15, horizon(20))
    assert one.then(15, horizon(10)) == one
    assert one.then(0, horizon(20)) == Calendar(horizon(20))


# --- Settings that change during a run, and the optimiser's state ---------------------

TEN_STEPS = 1280  # ten steps of small_config
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
    return make_segments(config, TEN_STEPS, of_model)


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


@pytest.mark.parametrize(("word", "count"), [("model", 3), ("", 1)])
def test_a_command_may_give_a_single_word(word, count):
    config: Any = {**small_config().to_dict(), "regime": word}
    brought = (("1 epoch", LOWER), ("2 epochs", {"clip": "local(limit=1)"}))
    assert len(make_segments(ConfigDict(config), TEN_STEPS, brought).each) == count
    with pytest.raises(UserError, match="made of pairs"):
        make_segments(ConfigDict({**config, "regime": "models"}), TEN_STEPS, brought)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("30 epochs", {})], "made of pairs"),
        ([("30 epoks", LOWER)], "unknown unit"),
        ([("1 epoch", {"batch_size": 9})], "regime '1 epoch': a batch of 9 does not"),
        ([("1 epoch", {"batch_size": 2000})], "2000 is more than 1280 examples"),
        ([("15 steps", {"batch_size": 64})], "step 16 is 1.5 epochs into the run"),
        ([("1 epoch", {"accumulate": 2})], "regime '1 epoch': accumulate does not"),
        ([("1 epoch", {"optimiser": "adam"})], "Did you mean 'optimizer'"),
        ([("1 epoch", {"learning_rate": -1.0})], "regime '1 epoch': learning_rate is"),
        ([("2 epochs", LOWER), ("1 epoch", LOWER)], "a later one is later"),
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
        ({"optimizer": "adamw", "decay_at": "gradient"}, "decay_at"),
        ({"decay": "Dens_0"}, "fits no parameter"),
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
        ("sgd", "adam", False),
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


def test_keys_are_those_of_a_config():
    config = small_config()
    assert set(KEYS) == {*config}


# --- Batches and pictures that grow during a run --------------------------------------

# 11 steps in an epoch of 1437 digits, and then 5.
GROWS = ("1 epoch", {"batch_size": 256, "image_size": 12})
SMALL = ("0 epochs", {"image_size": 8})
LAST = ("3 epochs", {"batch_size": 512})


def config_of(*regime: Any, **changes: Any) -> Any:
    usual = {"train_for": "3 epochs", "mapper": "vmap", "dataset": "digits(size=12)"}
    settings = {**usual, **changes}
    return small_config(regime=regime, **settings)


def tasks_of(setup: Any) -> list[Any]:
    return [segment.task for segment in setup.segments.each]


# --- Before the first step ------------------------------------------------------------


def test_an_epoch_is_a_pass_over_the_data_in_every_phase():
    setup = built(config_of(SMALL, GROWS))
    assert setup.total_steps == 11 + 5 + 5
    assert [setup.triggers(n).ends_epoch for n in (10, 11, 15, 16, 21)] == [
        *(False, True, False, True, True),
    ]
    assert [setup.triggers(n).epoch for n in (1, 11, 12, 16, 17)] == [1, 1, 2, 2, 3]
    assert [setup.example(regime)[0].shape for regime in (0, 1)] == [
        *((64, 12, 12, 1), (128, 12, 12, 1)),
    ]
    assert setup.eval_batch == 128
    shapes = [task.shares(1).shape for task in tasks_of(setup)]
    assert shapes == [(11, 2, 64), (5, 2, 128)]


def test_schedules_go_by_epochs_and_scaling_by_the_batch():
    regime = ("1 epoch", {"batch_size": 256})
    scaled = config_of(
        regime, schedule="polynomial", lr_scaling="linear(base_batch_size=128)"
    )
    setup = built(scaled)
    for step in (0, 7, 10, 11, 14, 15, 20):
        epochs = step / 11 if step < 11 else 1 + (step - 11) / 5
        expected = 0.1 * (1 if step < 11 else 2) * (1 - epochs / 3)
        assert setup.rate_on_host(step) == pytest.approx(expected, rel=1e-5)
    # A ramp that is not over when the batch grows goes on at the same epoch.
    setup = built(config_of(regime, schedule="constant", warmup="1.6 epochs"))
    found = [setup.rate_on_host(step) for step in range(21)]
    assert found[10] == pytest.approx(0.1 * 11 / 17.6, rel=1e-5)
    assert found[11] == pytest.approx(0.1 * (1 + 1 / 5) / 1.6, rel=1e-5)
    assert found[13] == found[20] == pytest.approx(0.1)
    assert found == sorted(found)


TEXT = {"task": "language(bptt=4)", "dataset": "grammar", "model": "lstm"}


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ({"batch_size": 100}, {"accumulate": 4}, "batch of 100 does not divide over 2"),
        ({"image_size": 9}, {"model": "mlp"}, "image_size=9 makes another model"),
        ({"image_size": 4}, {}, "cannot take pictures as image_size=4"),
        ({"batch_size": 64}, TEXT, "batch_size does not change"),
    ],
    ids=str,
)
def test_what_a_phase_cannot_have_is_refused_before_the_run(settings, changes, words):
    with pytest.raises(UserError, match=f"(?s)regime '1 epoch': .*{words}"):
        built(config_of(("1 epoch", settings), **changes))


# --- Pictures -------------------------------------------------------------------------


def some_pictures() -> jax.Array:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    return jax.numpy.asarray(pixels)


def test_pictures_are_resized_after_they_are_augmented():
    images = some_pictures()
    colours: Any = {"mean": [0.5], "std": [0.5]}
    key = jax.random.key(0)
    whole = data.make_augment("crop(pad=2) | flip", **colours)(images, key)
    for side in (5, 11):
        small = data.make_augment("crop(pad=2) | flip", size=side, **colours)
        expected = jax.image.resize(whole, (3, side, side, 1), "linear", antialias=True)
        np.testing.assert_allclose(small(images, key), expected, rtol=1e-6)


def test_streamed_pictures_are_decoded_in_the_size_of_their_phase(tmp_path):
    root = write_folders(tmp_path / "images")
    spec = f"class_folders(path='{root}', size=10)"
    config = config_of(("1 epoch", {"image_size": 8}), dataset=spec, batch_size=4)
    setup = built(config)
    assert [task.train[0][:2].shape for task in tasks_of(setup)] == [
        *((2, 10, 10, 3), (2, 8, 8, 3)),
    ]
    assert all(task.test[0].shape[1:] == (10, 10, 3) for task in tasks_of(setup))


# --- The data position ----------------------------------------------------------------


def test_batches_are_those_of_their_phase_from_any_step():
    grows = ("1 epoch", {"batch_size": 256})
    setup = built(config_of(grows, LAST, train_for="4 epochs"))
    local = slice(0, 2)

    def labels(start: int) -> list[np.ndarray]:
        def feed(task: Any, begin: int) -> Any:
            return train_feed(task, local=local, start=begin)

        found = batches_from(start, setup.segments, feed)
        return [batch[1] for batch in itertools.islice(found, 24 - start)]

    whole = labels(0)
    expected = [
        setup.task.train[1][chosen]
        for epoch, number in enumerate((0, 1, 1, 2))
        for chosen in tasks_of(setup)[number].shares(epoch)
    ]
    for found, wanted in zip(whole, expected, strict=False):
        np.testing.assert_array_equal(found, wanted)
    for start in (3, 11, 13, 16, 20, 21, 22):
        for found, wanted in zip(labels(start), whole[start:], strict=True):
            np.testing.assert_array_equal(found, wanted)


# --- Whole runs -----------------------------------------------------------------------

BEGIN = {"optimizer": "sgd(momentum=0.9)"}
PICTURES = {"dataset": "digits(size=12)"}
ADAM = {"optimizer": "adam", "clip": "local(limit=1)", "learning_rate": 0.01}
CHANGING: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    # Where the first segment ends, and within the second.
    ({"mapper": "pmap"}, (11, 2)),
    ({"scope": "per_leaf", "ema": 0.9, **PICTURES}, (3, 4, 4, 6)),
    ({"mixer": "local_sgd(h=2)", "ema": 0.9}, (11, 1)),
    ({"accumulate": 2, "layers_every": "1 epoch", "breakdown": True}, (12,)),
]


@pytest.mark.parametrize(
    ("changes", "stops"), tiers(CHANGING, CHANGING[0].__eq__), ids=str
)
def test_a_run_goes_on_to_the_bit_in_any_segment(
    changes, stops, tmp_path, monkeypatch, capsys
):
    begin: dict[str, Any] = {**BEGIN}
    grows: dict[str, Any] = {"batch_size": 256, **ADAM}
    changes = {"dataset": "digits(size=8)", **changes}
    if changes["dataset"] == PICTURES["dataset"]:
        begin["image_size"], grows["image_size"] = 8, 12
    regime = (("0 epochs", begin), ("1 epoch", grows))
    config = config_of(*regime, log_every=1, schedule="constant", **changes)
    whole = training.train_and_evaluate(config, tmp_path / "whole")
    said = capsys.readouterr().out
    assert "from step 12 on: batch_size=256, optimizer='adam'" in said
    assert "compiling for top_k(keep=0.1) (regime 2)" in said or "mixer" in changes
    parts = train_with_stops(config, tmp_path / "parts", stops, monkeypatch)
    assert_same_state(whole.state, parts.state)
    assert "ScaleByAdamState" in str(jax.tree.structure(whole.state.opt_state))
    for name in ("metrics.csv", "steps.csv"):
        found, wanted = (rows(tmp_path / part / name) for part in ("parts", "whole"))
        assert found == wanted
    found = rows(tmp_path / "whole" / "metrics.csv")
    table = [tuple(int(row[k]) for k in ("epoch", "step", "examples")) for row in found]
    assert table == [(1, 11, 1408), (2, 16, 2688), (3, 21, 3968)]
    if "mixer" not in changes:  # that one talks in every second step
        assert len({row["wire_bytes_per_step"] for row in found}) == 1
    steps = rows(tmp_path / "whole" / "steps.csv")
    assert [int(row["epoch"]) for row in steps] == [1] * 11 + [2] * 5 + [3] * 5
    rates = [float(row["learning_rate"]) for row in steps]
    assert rates == pytest.approx([0.1] * 11 + [0.01] * 10)


# --- A batch that is said for each worker is the same as one said ---------------------

EACH = {"batch_size": 0, "batch_per_worker": 64}


def test_a_folder_holds_the_batch_of_all_and_both_are_told():
    config = small_config(**EACH, mapper="vmap")
    text = training.dry_run(config, "nowhere")
    assert "22 steps of 128 examples, 64 from each worker\n" in text
    found = json.loads(settled(config, built(config).workers).to_json())
    assert (found["batch_size"], found["batch_per_worker"]) == (128, 0)
    assert config.batch_per_worker == 64  # what was given stays
