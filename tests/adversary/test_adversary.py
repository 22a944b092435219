"""The adversary itself: a dozen of its programs, and faults that it has to notice."""

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import compressors, exchanges, memory, scope
from jaxcomp.mixers import gossip, local
from tests.adversary.draw import Leaf, Program, draw, line_of, program_of
from tests.adversary.examine import examine, smallest
from tests.tiers import tiers

# What takes long is left out; of later ones, exchanges that are accepted.
SEEDS = (3, 4, 5, *range(7, 20), 21, 23, *range(25, 31))
SEEDS += (38, 42, 51, 63, 95, 113, 118, 123, 125)


@pytest.mark.parametrize("seed", tiers([*SEEDS, *range(140, 240)], SEEDS.__contains__))
def test_what_is_drawn_is_right_or_refused(seed):
    verdict = examine(draw(seed))
    assert not verdict.broken, line_of(draw(seed))


def test_everything_is_drawn_and_can_be_pasted():
    programs = [draw(seed) for seed in range(400)]
    text = "\n".join(map(line_of, programs))
    assert list(map(program_of, text.splitlines())) == programs
    for part in (compressors, exchanges, gossip, local, memory, scope):
        assert [name for name in part.REGISTRY if name not in str(programs)] == []
    assert draw(7) == draw(7)


def sign_without_signs():
    sign = compressors.sign()
    return sign._replace(
        compress=lambda x, state, key: sign.compress(abs(x), state, key),
        segmented=None,
    )


def gather_too_long(plan, axis):
    gather = exchanges.gather(plan, axis)

    def average(tree, state, key):
        step = gather.average(tree, state, key)
        return step._replace(mean=jax.tree.map(lambda x: 1.01 * x, step.mean))

    return gather._replace(average=average)


def gather_that_hides(plan, axis):
    gather = exchanges.gather(plan, axis)

    def average(tree, state, key):
        return gather.average(jax.tree.map(jnp.nan_to_num, tree), state, key)

    return gather._replace(average=average)


def feedback_that_forgets(exchange):
    kept = memory.error_feedback(exchange)

    def average(tree, state, key):
        step = kept.average(tree, state, key)
        return step._replace(state=jax.tree.map(lambda x: x / 2, step.state))

    return kept._replace(average=average)


def gather_with_a_bug(plan, axis):
    raise TypeError("not a message of the library")


FAULTS = {
    "residual is bounded": (compressors, "sign", sign_without_signs),
    "mean of sent": (exchanges, "gather", gather_too_long),
    "a NaN is seen": (exchanges, "gather", gather_that_hides),
    "conservation": (memory, "error_feedback", feedback_that_forgets),
    "refusals are messages": (exchanges, "gather", gather_with_a_bug),
}


@pytest.mark.parametrize("law", FAULTS)
def test_a_fault_is_noticed(law, monkeypatch):
    part, name, wrong = FAULTS[law]
    tree = Leaf("w", (5, 3), "float32"), Leaf("b", (7,), "float32")
    program = Program(compressor="sign", memory="error_feedback", tree=tree)
    monkeypatch.setitem(part.REGISTRY, name, wrong)
    verdict = examine(program)
    assert verdict.outcome == "wrong"
    assert law in dict(verdict.broken)


def test_what_is_printed_is_small(monkeypatch):
    monkeypatch.setitem(exchanges.REGISTRY, "gather", gather_with_a_bug)
    program = draw(1)._replace(method="gather", compressor="sign", scope="whole_tree")
    least = smallest(program, "refusals are messages")
    assert len(least.tree) == 1
    assert least.scope == "per_leaf"
