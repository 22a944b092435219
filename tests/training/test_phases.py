"""Batches and pictures that grow during a run."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomp import data, training
from jaxcomp.core.errors import UserError
from jaxcomp.training.feed import train_feed
from jaxcomp.training.segments import batches_from
from tests.data.class_folders import write_folders
from tests.tiers import tiers
from tests.training.small import (
    assert_same_state,
    built,
    rows,
    small_config,
    train_with_stops,
)

# 11 steps in an epoch of 1437 digits, and then 5.
GROWS = ("1 epoch", {"batch_size": 256, "image_size": 12})
SMALL = ("0 epochs", {"image_size": 8})
LAST = ("3 epochs", {"batch_size": 512})


@pytest.fixture(autouse=True)
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


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


def test_regimes_of_the_same_sizes_share_a_task():
    lower = {"learning_rate": 0.01}
    setup = built(config_of(SMALL, ("5 steps", lower), GROWS, ("2 epochs", lower)))
    numbers = [tasks_of(setup).index(task) for task in tasks_of(setup)]
    assert numbers == [0, 0, 2, 2]


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
        ({"batch_size": 66}, {"batch_norm": "local(ghost=16)"}, "16"),
        ({"image_size": 9}, {"model": "mlp"}, "image_size=9 makes another model"),
        ({"image_size": 4}, {}, "cannot take pictures as image_size=4"),
        ({"image_size": 14}, {"augment": "random_resized_crop(12)"}, "14 is larger"),
        ({"batch_size": 64}, TEXT, "batch_size does not change"),
    ],
    ids=str,
)
def test_what_a_phase_cannot_have_is_refused_before_the_run(settings, changes, words):
    with pytest.raises(UserError, match=f"(?s)regime '1 epoch': .*{words}"):
        built(config_of(("1 epoch", settings), **changes))


def test_the_picture_size_of_a_whole_run_is_checked_too():
    with pytest.raises(
        UserError, match="^the model cannot take pictures as image_size=4"
    ):
        built(small_config(image_size=4))
    with pytest.raises(UserError, match="^image_size does not change"):
        built(small_config(image_size=8, **TEXT))


def test_a_dry_run_shows_all_phases(tmp_path):
    text = training.dry_run(config_of(SMALL, GROWS), tmp_path / "run")
    assert "11 steps of 128 examples, 64 from each worker\n10 steps of 256 " in text
    assert "\nfrom step 1 on: image_size=8\n" in text
    assert "3 epochs of 11 or 5 steps, 3,968 examples in all" in text
    assert "from step 12 on: batch_size=256, image_size=12" in text
    assert f"{21:>10,}{3:>9.2f}" in text


# --- Pictures -------------------------------------------------------------------------


def some_pictures() -> jax.Array:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    return jax.numpy.asarray(pixels)


def test_pictures_are_resized_after_they_are_augmented():
    images = some_pictures()
    colours: Any = {"mean": [0.5], "std": [0.5]}
    key = jax.random.key(0)
    whole = data.make_augment("crop(pad=2) | flip", **colours)(images, key)
    for side in (5, 8, 11):
        small = data.make_augment("crop(pad=2) | flip", size=side, **colours)
        expected = jax.image.resize(whole, (3, side, side, 1), "linear", antialias=True)
        np.testing.assert_allclose(small(images, key), expected, rtol=1e-6)


def test_a_random_window_is_resized_once():
    images = some_pictures()
    colours: Any = {"mean": [0.5], "std": [0.5]}
    given = images, jax.random.key(0)
    asked = data.make_augment("random_resized_crop(size=8) | flip", size=5, **colours)
    same = data.make_augment("random_resized_crop(size=5) | flip", **colours)
    np.testing.assert_array_equal(asked(*given), same(*given))


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

RUNS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({}, (11, 2)),  # where the first phase ends, and within the second
    ({"scope": "per_leaf"}, (3, 4, 4, 6)),
    ({"mapper": "pmap", "partition": "contiguous"}, (7, 4, 2)),
    ({"mixer": "local_sgd(h=2)", "ema": 0.9}, (11, 1)),
    ({"accumulate": 2, "layers_every": "1 epoch", "breakdown": True}, (12,)),
]


@pytest.mark.parametrize(
    ("changes", "stops"), tiers(RUNS, lambda run: not run[0]), ids=str
)
def test_a_run_goes_on_to_the_bit_in_any_phase(
    changes, stops, tmp_path, monkeypatch, capsys
):
    config = config_of(SMALL, GROWS, log_every=1, **changes)
    whole = training.train_and_evaluate(config, tmp_path / "whole")
    assert "from step 12 on: batch_size=256, image_size=12" in capsys.readouterr().out
    parts = train_with_stops(config, tmp_path / "parts", stops, monkeypatch)
    assert_same_state(whole.state, parts.state)
    for name in ("metrics.csv", "steps.csv"):
        found, wanted = (rows(tmp_path / part / name) for part in ("parts", "whole"))
        assert found == wanted
    found = rows(tmp_path / "whole" / "metrics.csv")
    table = [tuple(int(row[k]) for k in ("epoch", "step", "examples")) for row in found]
    assert table == [(1, 11, 1408), (2, 16, 2688), (3, 21, 3968)]
    if "mixer" not in changes:  # that one talks in every second step
        assert len({row["wire_bytes_per_step"] for row in found}) == 1
    epochs = [int(row["epoch"]) for row in rows(tmp_path / "whole" / "steps.csv")]
    assert epochs == [1] * 11 + [2] * 5 + [3] * 5
