"""Epochs, examples and durations where the batch of a step changes."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxcomp.core.errors import UserError
from jaxcomp.training.schedules import Horizon
from jaxcomp.training.segments import Calendar, RunSegments, Segment
from tests.training.small import segments_of

EXAMPLES = 100


def horizon(batch: int) -> Horizon:
    return Horizon(EXAMPLES // batch, batch)


def calendar(*phases: tuple[int, int]) -> RunSegments:
    """RunSegments as pairs of the epoch in which they begin and their batch."""
    made = segments_of(horizon(phases[0][1]))
    for epoch, batch in phases[1:]:
        first = made.steps_of(f"{epoch} epochs")
        following = made.each[-1].calendar.then(first, horizon(batch))
        made = RunSegments((*made.each, Segment(first, {}, None, following)))
    return made


class Walked(NamedTuple):
    """A run taken step by step."""

    epochs: list[Fraction]  # before each step
    examples: list[int]
    batches: list[int]


def walked(phases: tuple[tuple[int, int], ...], epochs: int) -> Walked:
    found, examples = Walked([], [], []), 0
    for epoch in range(epochs):
        batch = next(b for first, b in reversed(phases) if first <= epoch)
        steps = EXAMPLES // batch
        for place in range(steps):
            found.epochs.append(epoch + Fraction(place, steps))
            found.examples.append(examples)
            found.batches.append(batch)
            examples += batch
    return found


RUNS = [
    ((0, 10),),
    ((0, 10), (2, 25)),
    ((0, 30), (1, 10), (5, 49)),
    ((0, 7), (3, 100), (4, 1)),
]


@pytest.mark.parametrize("phases", RUNS, ids=str)
def test_every_step_is_where_a_walk_finds_it(phases):
    made, there = calendar(*phases), walked(phases, epochs=8)
    for step, (epochs, examples, batch) in enumerate(zip(*there, strict=True)):
        assert made.epochs(step) == epochs
        assert made.epoch_at(step) == int(epochs) + 1
        assert made.examples(step) == examples
        assert made.batch_at(step) == batch
        assert made.steps_of(f"{step} steps", may_be_zero=True) == step
        assert made.steps_of(f"{examples} examples", may_be_zero=True) == step
    for epoch in range(8):
        assert made.end_of(epoch) == there.epochs.index(Fraction(epoch))


@pytest.mark.parametrize("phases", RUNS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_intervals_of_epochs_end_with_epochs(phases, length):
    made, there = calendar(*phases), walked(phases, epochs=8)
    ends = made.every({"x": f"{length} epochs"}, "x")
    found = [step for step in range(1, len(there.epochs)) if ends(step)]
    whole = [there.epochs.index(Fraction(e)) for e in range(length, 8, length)]
    assert found == whole
    assert made.epochs_every({"x": f"{length} epochs"}, "x") == length


def test_other_intervals_are_as_long_as_they_say_in_each_phase():
    made = calendar((0, 10), (2, 25))  # steps 0 to 19, and then 4 an epoch
    for text, expected in {
        "3 steps": [3, 6, 9, 12, 15, 18, 21, 24, 27],
        "50 examples": [5, 10, 15, 20, 22, 24, 26, 28],
        "0.5 epochs": [5, 10, 15, 20, 22, 24, 26, 28],
        "": [],
    }.items():
        ends = made.every({"x": text}, "x")
        assert [step for step in range(1, 29) if ends(step)] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.5 epochs", "x counts in whole epochs, and '1.5 epochs' is 1.5 epochs"),
        ("10 steps", "is 1 and 2.5 epochs of 10 and 4 steps: write for example '1 ep"),
        ("2 epoks", "x: unknown unit"),
    ],
)
def test_parts_of_an_epoch_are_refused_where_epochs_are_counted(text, words):
    with pytest.raises(UserError, match=words):
        calendar((0, 10), (2, 25)).epochs_every({"x": text}, "x")


def test_another_batch_begins_with_an_epoch():
    one = Calendar(horizon(10))
    with pytest.raises(UserError, match=r"step 16 is 1.5 epochs .* example '2 epochs'"):
        one.then(15, horizon(20))
    assert one.then(15, horizon(10)) == one
    assert one.then(0, horizon(20)) == Calendar(horizon(20))


def test_what_no_duration_is_names_its_key():
    config: Any = {"train_for": "3 weeks"}
    with pytest.raises(UserError, match="train_for: unknown unit in '3 weeks'"):
        segments_of(horizon(10)).steps_at(config, "train_for")
    assert np.isclose(float(segments_of(horizon(30)).epochs(4)), 4 / 3)
