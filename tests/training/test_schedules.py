"""Durations and learning rates, by hand."""

import pytest

from jaxcomp.training.schedules import REGISTRY, Horizon, learning_rate
from tests.training.small import segments_of

HORIZON = Horizon(steps_per_epoch=10, batch_size=32)
RUN = segments_of(HORIZON)


def rate(schedule, **arguments):
    arguments = {"total": 100, **arguments}
    return learning_rate(0.5, schedule, horizon=HORIZON, **arguments)


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        ("7 steps", 7),
        ("1 step", 1),
        ("3 epochs", 30),
        ("0.5 epochs", 5),
        ("0.01 epochs", 1),
        ("320 examples", 10),
        ("321 examples", 11),
        ("50_000 examples", 1563),
        ("", 0),
    ],
)
def test_durations(duration, steps):
    assert RUN.steps_of(duration) == steps
    assert RUN.steps_of("0 epochs", may_be_zero=True) == 0


@pytest.mark.parametrize(
    "duration",
    ["5", "epochs", "five epochs", "-1 epochs", "0 steps", "3 hours", "1 2 3"],
)
def test_a_bad_duration_is_shown_with_good_ones(duration):
    with pytest.raises(ValueError, match=r"epochs") as error:
        RUN.steps_of(duration)
    assert repr(duration) in str(error.value)
    assert "500 steps" in str(error.value)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("constant", {0: 0.5, 99: 0.5}),
        ("cosine", {0: 0.5, 50: 0.25, 100: 0.0}),
        ("cosine(final=0.1)", {0: 0.5, 100: 0.05}),
        ("cosine(begin=5)", {0: 0.5, 50: 0.5, 75: 0.25, 100: 0.0}),
        ("multistep(epochs=[2, 5])", {19: 0.5, 21: 0.05, 51: 0.005}),
        ("multistep(epochs=[2], factor=0.5)", {19: 0.5, 20: 0.25}),
        ("multistep(epochs=[0, 2.5], factor=0.5)", {0: 0.25, 24: 0.25, 25: 0.125}),
        (
            "piecewise_linear(epochs=[0, 5, 10], values=[0, 1, 0])",
            {0: 0.0, 25: 0.25, 50: 0.5, 75: 0.25, 100: 0.0, 130: 0.0},
        ),
        (  # phases, each with a line of its own
            "piecewise_linear(epochs=[0, 2, 2, 5, 5], values=[1, 2, 0.2, 0.1, 0.01])",
            {0: 0.5, 10: 0.75, 20: 0.1, 35: 0.075, 49: 0.0516667, 50: 0.005, 90: 0.005},
        ),
        ("polynomial", {0: 0.5, 50: 0.25, 100: 0.0, 130: 0.0}),
        ("polynomial(power=2, final=0.2)", {0: 0.5, 50: 0.2, 100: 0.1}),
        ("convex_decay(epochs=2)", {0: 0.5, 20: 0.25, 60: 0.125}),
        (  # 46 epochs of system 4: .15 -> 3 -> .15 -> .0015
            "one_cycle",
            {0: 0.025, 45: 0.5, 67.5: 0.2625, 90: 0.025, 95: 0.012625, 100: 0.00025},
        ),
        ("one_cycle(rise=0.5, low=0)", {0: 0.0, 25: 0.25, 50: 0.5, 75: 0.25}),
    ],
)
def test_schedules_by_hand(schedule, values):
    for step, value in values.items():
        assert float(rate(schedule)(step)) == pytest.approx(value, abs=1e-6)


def test_every_schedule_was_tested():
    assert set(REGISTRY) == {
        *("constant", "convex_decay", "cosine", "multistep", "one_cycle"),
        *("piecewise_linear", "polynomial"),
    }


def test_warmup_is_a_ramp_that_multiplies():
    ramp, other = (rate("constant", warmup=4, warmup_from=x) for x in (0, 0.2))
    found = [[float(each(s)) for s in range(5)] for each in (ramp, other)]
    assert found[0] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])
    assert found[1] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.5])
    assert float(rate("constant", warmup_from=0.2)(0)) == 0.5


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        ("none", 1),
        ("linear", 4),
        ("sqrt", 2),
        ("degree", 3),
        ("linear(base_batch_size=8)", 4),  # of a batch of 32
        ("linear(base_batch_size=64)", 0.5),
        ("sqrt(base_batch_size=8)", 2),
        ("degree(base_batch_size=4)", 6),  # three workers of 8 examples each
    ],
)
def test_scaling_with_workers_and_batch(scaling, factor):
    scaled = rate("constant", scaling=scaling, workers=4, degree=2)
    assert float(scaled(0)) == pytest.approx(0.5 * factor)


@pytest.mark.parametrize(
    ("schedule", "scaling", "words"),
    [
        ("constant", "liner", "Did you mean 'linear'"),
        ("constant", "degree", "a graph: set topology"),
        ("piecewise_linear([0, 5, 4], [0, 1, 0])", "none", "must rise"),
        ("piecewise_linear(epochs=[], values=[])", "none", "must rise"),
        ("piecewise_linear([5, 5, 5], [0, 1, 0])", "none", "may come twice"),
        ("multistep(epochs=[2, 2])", "none", "name one twice"),
    ],
)
def test_mistakes_are_named(schedule, scaling, words):
    with pytest.raises(ValueError, match=words):
        rate(schedule, scaling=scaling)
