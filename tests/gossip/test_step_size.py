"""Consensus step sizes: from theory, and tuned."""

import jax
import numpy as np
import pytest

import jaxcomp
from jaxcomp.mixers import gossip
from jaxcomp.mixers.gossip._step_size import (
    GRID,
    consensus_errors,
    step_sizer,
    theory,
    tuned,
)
from jaxcomp.scope import lift, policy
from tests.gossip.runs import flat, problem, train
from tests.tiers import tiers

RING = jaxcomp.topology("ring", 8)


def test_theory_by_hand():
    """Ring of 8: W has eigenvalues 1/3 + 2/3 cos(2 pi k / 8)."""
    codec, spec = lift("per_leaf", "top_k(keep=0.25)"), {"w": np.zeros(40, np.float32)}
    eigenvalues = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(8) / 8)
    d, b, w = 1 - eigenvalues[1], 1 - eigenvalues.min(), 0.25
    by_hand = d * d * w / (16 * d + d * d + 4 * b * b + 2 * d * b * b - 8 * d * w)
    assert theory(codec, RING, spec) == pytest.approx(by_hand)


def test_the_smallest_contraction_of_all_tensors_counts():
    codec = lift("per_leaf", "sign")
    alone, both = (
        theory(codec, RING, {str(n): np.zeros(n, np.float32) for n in sizes})
        for sizes in ((50,), (2, 50))
    )
    assert alone == both


def test_theory_needs_a_contraction():
    with pytest.raises(ValueError, match="declares none"):
        theory(
            lift("per_leaf", "qsgd(levels=1)"), RING, {"w": np.zeros(512, np.float32)}
        )


@pytest.mark.parametrize(
    "compressor", tiers(["top_k(keep=0.05)", "sign", "none"], "sign".__eq__)
)
def test_tuned_is_the_best_of_the_grid(compressor):
    codec = lift("per_leaf", compressor)
    best = tuned(codec, RING, 300)
    errors = np.asarray(consensus_errors(codec, RING, 300, GRID))
    assert errors[GRID.index(best)] == np.nanmin(errors) < 0.5


def test_tuning_sees_the_compressor_that_a_tensor_gets():
    """Patterns of a policy fit names, axes and sizes of the model, and no others."""
    method = "random_k(keep=0.1)"
    plan = policy(jaxcomp.make_compressor("none"), rules=[("b", method)])
    found = step_sizer("tuned", plan, RING)({"b": np.zeros((15, 20), np.float32)})
    assert found == tuned(lift("per_leaf", method), RING, 300)


def test_what_never_agrees_is_refused():
    """A bucket of 512 and 7 levels lose more than they hold."""
    with pytest.raises(ValueError, match="drift apart at every step size"):
        tuned(lift("per_leaf", "qsgd(levels=7)"), RING, 512)


def test_tuning_happens_while_a_step_is_traced():
    """Under jit and vmap, and the same as the number it finds."""
    given = problem(8)
    size = max(x.size for x in jax.tree.leaves(given.start))
    best = tuned(lift("per_leaf", "top_k(keep=0.1)"), RING, size)
    ours, theirs = (
        train(gossip.make(f"choco(gamma={gamma})", RING, "top_k(keep=0.1)"), given, 5)
        for gamma in ("'tuned'", best)
    )
    np.testing.assert_array_equal(flat(ours, 2), flat(theirs, 2))
