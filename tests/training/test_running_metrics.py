"""A loss above the limit ends a run."""

import numpy as np
import pytest

from jaxcomp import training
from jaxcomp.training.running_metrics import check_loss
from jaxcomp.training.step import StepMetrics


def metrics(losses, applied=True):
    usual = dict.fromkeys(StepMetrics._fields, np.zeros(len(losses)))
    taken = np.full(len(losses), applied)
    return StepMetrics(**{**usual, "loss": np.float32(losses), "applied": taken})


def test_the_largest_loss_of_a_worker_counts():
    check_loss(4, metrics([1.0, 2.0]), limit=2.0)
    check_loss(4, metrics([1e30]), limit=0.0)  # none
    with pytest.raises(training.Diverged) as error:
        check_loss(4, metrics([1.0, 2.5]), limit=2.0)
    assert str(error.value) == (
        "step 5 has diverged: a worker's loss is 2.5, above loss_limit=2"
    )
    assert error.value.exit_code == training.NonFinite.exit_code == 1


def test_a_step_that_was_left_out_does_not_count():
    check_loss(0, metrics([np.inf, 1e9], applied=False), limit=2.0)
    check_loss(0, metrics([np.nan, np.nan], applied=False), limit=2.0)
