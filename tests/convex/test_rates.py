"""Learning rates by hand, in and out of jit."""

import jax
import jax.numpy as jnp
import pytest

from jaxcomp.convex import Facts, make_rate
from jaxcomp.convex.rates import REGISTRY
from jaxcomp.core.specs import SpecError

FACTS = Facts(regulariser=0.01, steps_per_epoch=10)
SPECS = ["constant(rate=0.3)", "epoch_decay(rate=0.3)", "decay", "bottou(rate=0.3)"]


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("constant(rate=0.3)", {0: 0.3, 10**6: 0.3}),
        ("epoch_decay(rate=2, factor=0.5)", {0: 2, 9: 2, 10: 1, 19: 1, 20: 0.5}),
        ("epoch_decay(rate=2, factor=1)", {0: 2, 1000: 2}),
        ("decay", {0: 100, 1: 50, 99: 1}),
        ("decay(a=2, tau=100)", {0: 2, 100: 1, 900: 0.2}),
        ("bottou(rate=5)", {0: 5, 20: 2.5, 10**6: 5 / 50_001}),
    ],
)
def test_rates_by_hand(spec, values):
    rate = make_rate(spec, FACTS)
    for step, value in values.items():
        assert float(rate(step)) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_a_traced_step_gives_the_same_rate(spec):
    rate = make_rate(spec, FACTS)
    traced = jax.jit(rate)
    for step in (0, 7, 10, 12345):
        found = traced(jnp.int32(step))
        assert found.dtype == jnp.float32
        assert float(found) == pytest.approx(float(rate(step)), rel=1e-6)


def test_every_rule_is_tested():
    assert {spec.split("(")[0] for spec in SPECS} == set(REGISTRY)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("constant", "needs rate"),
        ("constant(rate=0)", "rate is a number above 0, not 0"),
        ("constant(rate=True)", "rate is a number above 0, not True"),
        ("epoch_decay(rate=1, factor=1.5)", r"factor is a number in \(0, 1\], not 1.5"),
        ("epoch_decay(rate=1, factor=0)", r"factor is a number in \(0, 1\], not 0"),
        ("decay(a=-1)", "a is a number above 0, not -1"),
        ("decay(tau=0)", "tau is a number above 0, not 0"),
        ("bottou(rate='x')", "rate is a number above 0, not 'x'"),
        ("botou(rate=1)", "Did you mean 'bottou'"),
    ],
)
def test_mistakes_are_shown(spec, message):
    with pytest.raises(SpecError, match=message):
        make_rate(spec, FACTS)


@pytest.mark.parametrize("spec", ["decay", "bottou(rate=1)"])
def test_rules_of_strong_convexity_need_a_regulariser(spec):
    with pytest.raises(SpecError, match="divides by the regulariser, which is 0.0"):
        make_rate(spec, FACTS._replace(regulariser=0.0))
    with pytest.raises(SpecError, match="an epoch has 1 step or more, not 0"):
        make_rate("epoch_decay(rate=1)", FACTS._replace(steps_per_epoch=0))
