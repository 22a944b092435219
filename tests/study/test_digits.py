"""The small classifier of the notebooks."""

import numpy as np
import optax
import pytest

from jaxcomp import UserError, make_exchange, study


@pytest.fixture(scope="module")
def task():
    return study.digits("tiny")


def test_batches_go_on_with_the_next_epoch(task):
    batches = task.batches(6, 4, 64)  # 5 of 256 are an epoch
    assert len(batches) == 6
    assert not np.array_equal(batches[0][1], batches[5][1])
    with pytest.raises(UserError, match="examples a step are more than"):
        task.batches(1, 100, 64)


def test_it_learns(task):
    exchange = make_exchange(compressor="top_k(keep=0.05)")
    run = study.train(
        task.loss,
        task.params,
        task.batches(40, 4, 32),
        exchange,
        optax.sgd(0.1, momentum=0.9),
    )
    assert np.isfinite(run.losses).all()
    assert run.losses[-5:].mean() < 0.8 * run.losses[:5].mean()
    assert task.accuracy(run.params) > task.accuracy(task.params)
