"""A batch that is said for each worker is the same as one said for all of them."""

import json

from jaxcomp import training
from jaxcomp.cli import prediction
from jaxcomp.training.plan import settled
from tests.training.small import built, small_config

EACH = {"batch_size": 0, "batch_per_worker": 64}


def test_a_batch_of_each_worker_is_that_of_all_of_them():
    one, other = built(small_config()), built(small_config(**EACH))
    assert one.segments.calendars == other.segments.calendars
    assert one.total_steps == other.total_steps
    assert (one.task.shares(0) == other.task.shares(0)).all()
    assert built(small_config(**EACH, workers=4)).segments.batch_at(0) == 256


def test_a_folder_holds_the_batch_of_all_and_both_are_told():
    config = small_config(**EACH, mapper="vmap")
    text = training.dry_run(config, "nowhere")
    assert "22 steps of 128 examples, 64 from each worker\n" in text
    found = json.loads(settled(config, built(config).workers).to_json())
    assert (found["batch_size"], found["batch_per_worker"]) == (128, 0)
    assert config.batch_per_worker == 64  # what was given stays


def test_durations_count_in_examples():
    assert built(small_config(**EACH, train_for="1000 examples")).total_steps == 8


def test_a_prediction_takes_the_share_of_one_worker():
    setup = prediction._alone(small_config(**EACH))
    assert setup.segments.batch_at(0) == 64
    assert setup.workers.size == 1
    grows = (("0 epochs", {"learning_rate": 0.2}), ("1 epoch", {"batch_size": 256}))
    setup = prediction._alone(small_config(**EACH, regime=grows))
    batches = [setup.segments.batch_at(step) for step in (0, setup.total_steps - 1)]
    assert batches == [64, 128]
