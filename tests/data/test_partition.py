"""Laws of the shares: disjoint, equal, of (seed, epoch) alone, uneven as asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomp.data import Partition, make_partition, worker_batches

KINDS = [
    ("all", {}),
    ("contiguous", {}),
    ("dirichlet", {"alpha": 0.5}),
    ("random", {}),
    ("random", {"reshuffle": True}),
    ("sorted", {}),
]
DISJOINT = KINDS[1:]
LABELS = np.random.default_rng(0).integers(0, 10, 1003)
every_kind = pytest.mark.parametrize(("name", "options"), KINDS)
disjoint_kinds = pytest.mark.parametrize(("name", "options"), DISJOINT)


def divided(name: str, workers: int = 7, seed: int = 0, **options) -> Partition:
    return make_partition(name, LABELS, workers=workers, seed=seed, **options)


def largest_class(shares: np.ndarray, labels: np.ndarray = LABELS) -> float:
    """The part of a worker's share that is of its commonest class, on average."""
    counts = [np.bincount(labels[share]).max() for share in shares]
    return float(np.mean(counts)) / shares.shape[1]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 120),
    st.integers(1, 12),
    st.integers(1, 15),
    st.sampled_from(DISJOINT),
    st.integers(0, 2**40),
)
def test_shares_are_disjoint_equal_and_hold_all_but_the_remainder(
    count, workers, classes, kind, seed
):
    name, options = kind
    count = max(count, workers)
    labels = np.random.default_rng(seed).integers(0, classes, count)
    chosen = make_partition(name, labels, workers=workers, seed=seed, **options)
    shares = chosen.shares(3)
    assert shares.shape == (workers, count // workers)
    assert len(np.unique(shares)) == shares.size
    assert shares.min() >= 0
    assert shares.max() < count
    assert count - shares.size < workers


@every_kind
def test_steps_and_members_of_an_epoch(name, options):
    chosen = divided(name, **options)
    for global_batch in (7, 21, 1001):
        dealt = worker_batches(chosen, epoch=2, global_batch=global_batch)
        steps = len(LABELS) // global_batch
        assert dealt.shape == (steps, 7, global_batch // 7)
        assert dealt.dtype == np.int64
        for worker, share in enumerate(chosen.shares(2)):
            mine = dealt[:, worker].ravel()
            assert len(np.unique(mine)) == len(mine)
            assert set(mine) <= set(share)


def test_with_all_each_worker_meets_everything_in_time():
    chosen = divided("all", workers=3)
    assert chosen.shares(0).shape == (3, len(LABELS))
    epochs = [worker_batches(chosen, epoch=e, global_batch=30) for e in range(40)]
    for worker in range(3):
        seen = np.concatenate([dealt[:, worker].ravel() for dealt in epochs])
        assert len(np.unique(seen)) == len(LABELS)
    assert not np.array_equal(epochs[0][:, 0], epochs[0][:, 1])


@every_kind
def test_an_epoch_follows_from_seed_and_number_alone(name, options):
    def dealt(epoch, seed=0):
        again = divided(name, seed=seed, **options)  # nothing is remembered
        return worker_batches(again, epoch=epoch, global_batch=70)

    np.testing.assert_array_equal(dealt(5), dealt(5))
    assert not np.array_equal(dealt(5), dealt(6))
    assert not np.array_equal(dealt(5), dealt(5, seed=1))


@every_kind
def test_shares_stay_unless_they_are_reshuffled(name, options):
    chosen = divided(name, **options)
    same = np.array_equal(chosen.shares(0), chosen.shares(9))
    assert same != options.get("reshuffle", False)


@disjoint_kinds
def test_a_partial_batch_is_of_other_examples_each_epoch(name, options):
    chosen = divided(name, **options)
    seen = [worker_batches(chosen, epoch=e, global_batch=700) for e in range(12)]
    reached = np.unique(np.concatenate([dealt.ravel() for dealt in seen]))
    assert len(reached) >= 7 * (1003 // 7)


def test_contiguous_keeps_the_given_order():
    shares = divided("contiguous", workers=4).shares(0)
    np.testing.assert_array_equal(np.diff(shares, axis=1), 1)
    assert (np.diff(shares[:, 0]) > 0).all()
    exact = make_partition("contiguous", np.zeros(6), workers=2, seed=0).shares(0)
    assert exact.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_sorted_gives_each_worker_few_classes():
    shares = divided("sorted", workers=10).shares(0)
    assert max(len(np.unique(LABELS[share])) for share in shares) <= 3
    # Stable: the examples of one class keep their order.
    for share in shares:
        for label in np.unique(LABELS[share]):
            assert (np.diff(share[LABELS[share] == label]) > 0).all()
    many = make_partition("sorted", np.arange(60) % 3, workers=15, seed=0).shares(0)
    assert all(len(np.unique(share % 3)) == 1 for share in many)


def test_a_left_over_is_not_always_of_the_last_class():
    labels = np.repeat(np.arange(10), 10)
    shares = make_partition("sorted", labels, workers=9, seed=0).shares(0)
    assert 99 in shares


def test_alpha_sets_how_uneven_the_classes_are():
    labels = np.repeat(np.arange(10), 500)
    alphas = (0.01, 0.1, 1.0, 10.0, 1e4)
    parts = []
    for alpha in alphas:
        seeds = [
            make_partition("dirichlet", labels, workers=10, seed=seed, alpha=alpha)
            for seed in range(5)
        ]
        parts.append(np.mean([largest_class(p.shares(0), labels) for p in seeds]))
    assert parts == sorted(parts, reverse=True)
    assert parts[0] > 0.6
    assert parts[-1] < 0.13
    random = make_partition("random", labels, workers=10, seed=0)
    assert largest_class(random.shares(0), labels) < 0.16


@pytest.mark.parametrize("alpha", [1e-320, 1e-9, 0.001, 1, 1e300])
@pytest.mark.parametrize("workers", [1, 2, 64, 300])
def test_no_alpha_leaves_a_worker_empty(alpha, workers):
    labels = np.arange(300) % 3  # far more workers than classes
    chosen = make_partition("dirichlet", labels, workers=workers, seed=1, alpha=alpha)
    shares = chosen.shares(0)
    assert shares.shape == (workers, 300 // workers)
    assert len(np.unique(shares)) == shares.size


def test_shares_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="read-only"):
        divided("sorted").shares(0)[0, 0] = 5


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sortd", {}, "'sortd'. Did you mean 'sorted'"),
        ("x", {}, "unknown partition 'x'. Valid: all, contiguous, dirichlet"),
        ("dirichlet", {"alhpa": 1.0}, "'alhpa'. Did you mean 'alpha'"),
        ("sorted", {"alpha": 1.0}, "no argument 'alpha'.*none"),
        ("dirichlet", {"alpha": 0}, "alpha is a number above 0, not 0"),
        ("dirichlet", {"alpha": float("nan")}, "above 0.*nan"),
        ("dirichlet", {"alpha": float("inf")}, "above 0.*inf"),
        ("dirichlet", {"alpha": "small"}, "above 0.*'small'"),
        ("random", {"reshuffle": 1}, "True or False, not 1"),
        ("random", {"workers": 0}, "0 workers cannot share 1003.*1 to 1003"),
        ("random", {"workers": 1004}, "1004 workers.*1 to 1003"),
        ("random", {"seed": -1}, "whole number from 0, not -1"),
    ],
)
def test_mistakes_are_shown_with_what_is_valid(name, changes, message):
    arguments = {"workers": 4, "seed": 0, **changes}
    with pytest.raises(ValueError, match=message):
        make_partition(name, LABELS, **arguments)


def test_mistakes_of_batches():
    chosen = divided("random", workers=4)
    with pytest.raises(ValueError, match="from 0, not -1"):
        worker_batches(chosen, epoch=-1, global_batch=8)
    with pytest.raises(ValueError, match="one for each example"):
        make_partition("all", np.zeros((3, 2)), workers=1, seed=0)
