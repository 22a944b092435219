"""Laws of batches: nothing lost, nothing twice, nothing but (seed, epoch)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcomp.data import batches, epoch_order, eval_batches

SIZES = st.integers(1, 200)
WORKERS = st.integers(1, 8)


@given(SIZES, st.integers(0, 2**31), st.integers(0, 500))
def test_order_is_a_permutation_of_seed_and_epoch_alone(count, seed, epoch):
    order = epoch_order(count, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(count))
    np.testing.assert_array_equal(order, epoch_order(count, seed=seed, epoch=epoch))


def test_orders_of_epochs_and_seeds_differ():
    pairs = [(seed, epoch) for seed in range(4) for epoch in range(4)]
    orders = {tuple(epoch_order(50, seed=s, epoch=e).tolist()) for s, e in pairs}
    assert len(orders) == len(pairs)


@given(SIZES, WORKERS, st.integers(1, 10))
def test_training_batches_hold_every_example_at_most_once(count, workers, share):
    size = workers * share
    order = epoch_order(count, seed=0, epoch=0)
    if size > count:
        with pytest.raises(ValueError, match=f"batch {size} is larger.*{count}"):
            batches(order, global_batch=size, workers=workers)
        return
    dealt = batches(order, global_batch=size, workers=workers)
    assert dealt.shape == (count // size, workers, share)
    # The batch of a step is the same set for every number of workers.
    np.testing.assert_array_equal(dealt.ravel(), order[: dealt.size])


@given(SIZES, WORKERS, st.integers(1, 10))
def test_evaluation_counts_every_example_once(count, workers, share):
    indices, weights = eval_batches(count, batch=workers * share, workers=workers)
    assert indices.shape == weights.shape == (len(indices), workers, share)
    assert weights.dtype == np.float32
    seen = np.bincount(indices.ravel(), weights=weights.ravel(), minlength=count)
    np.testing.assert_array_equal(seen, np.ones(count))
    assert set(np.unique(weights)) <= {0.0, 1.0}
    assert weights.sum(axis=(1, 2)).all()  # no step of padding only


@pytest.mark.parametrize(
    ("batch", "workers", "message"),
    [
        (10, 4, "batch of 10.*4 workers; nearest valid: 8 or 12"),
        (3, 4, "batch of 3.*4 workers; nearest valid: 4"),
        (0, 4, "batch of 0.*nearest valid: 4"),
        (-3, 4, "batch of -3.*nearest valid: 4"),
        (8, 0, "0 workers"),
    ],
)
def test_impossible_division_names_the_nearest(batch, workers, message):
    with pytest.raises(ValueError, match=message):
        batches(np.arange(20), global_batch=batch, workers=workers)
    with pytest.raises(ValueError, match=message):
        eval_batches(20, batch=batch, workers=workers)


def test_nothing_to_evaluate_is_an_error():
    with pytest.raises(ValueError, match="0 examples"):
        eval_batches(0, batch=4, workers=2)
