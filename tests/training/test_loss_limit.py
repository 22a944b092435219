"""A loss above the limit ends a run; what was written before stays."""

import numpy as np
import pytest

from jaxcomp import training
from jaxcomp.cli import train
from jaxcomp.training.running_metrics import check_loss
from jaxcomp.training.step import StepMetrics
from tests.training.small import rows, small_config


def metrics(losses, applied=True):
    usual = dict.fromkeys(StepMetrics._fields, np.zeros(len(losses)))
    taken = np.full(len(losses), applied)
    return StepMetrics(**{**usual, "loss": np.float32(losses), "applied": taken})


def test_the_largest_loss_of_a_worker_counts():
    check_loss(4, metrics([1.0, 2.0]), limit=2.0)
    with pytest.raises(training.Diverged) as error:
        check_loss(4, metrics([1.0, 2.5]), limit=2.0)
    assert str(error.value) == (
        "step 5 has diverged: a worker's loss is 2.5, above loss_limit=2"
    )
    assert error.value.exit_code == training.NonFinite.exit_code == 1


def test_without_a_limit_no_loss_is_too_large():
    check_loss(0, metrics([1e30]), limit=0.0)


def test_a_step_that_was_left_out_does_not_count():
    check_loss(0, metrics([np.inf, 1e9], applied=False), limit=2.0)
    check_loss(0, metrics([np.nan, np.nan], applied=False), limit=2.0)


@pytest.mark.slow
def test_a_run_that_diverges_ends_and_goes_on_with_a_larger_limit(tmp_path, capsys):
    """With a rate at which the loss is finite and grows."""
    usual = {"mapper": "vmap", "model": "mlp(hidden=[8])", "log_every": 1}
    usual |= {
        "schedule": "constant",
        "learning_rate": 50.0,
        "checkpoint_every": "1 steps",
    }
    config = small_config(**usual, loss_limit=20.0, train_for="11 steps")
    assert train.run(config, str(tmp_path)) == 1
    [line] = [x for x in capsys.readouterr().err.splitlines() if "diverged" in x]
    assert "above loss_limit=20" in line
    steps = rows(tmp_path / "steps.csv")
    losses = [float(row["loss"]) for row in steps]
    assert max(losses[:-1]) <= 20
    assert f"step {len(steps)} has diverged" in line
    config = small_config(**usual, loss_limit=0.0, train_for=f"{len(steps) + 1} steps")
    assert train.run(config, str(tmp_path)) == 0
    assert f"going on from step {len(steps) - 1}" in capsys.readouterr().out
    assert rows(tmp_path / "steps.csv")[: len(steps)] == steps
