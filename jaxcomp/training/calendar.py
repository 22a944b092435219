"""Epochs, examples and durations of a run whose batch may change.

Durations mean the same in all of it: an epoch is one pass over the data, which takes
fewer steps where a step takes more examples.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from jaxcomp.errors import UserError, within
from jaxcomp.training.durations import Horizon, read_duration, steps_in

__all__ = ["Calendar", "Phase", "calendar_of"]


class Phase(NamedTuple):
    """A part of a run in which all steps take as many examples."""

    first: int  # step, from 0
    epoch: int  # epochs before it
    examples: int  # likewise
    horizon: Horizon

    def as_if(self, step: int, unit: str = "epoch") -> int:
        """The number of a step, had all before it been steps of this phase.

        Example:
          >>> Phase(20, 2, 640, Horizon(steps_per_epoch=5, batch_size=64)).as_if(21)
          11
        """
        before = {
            "step": self.first,
            "epoch": self.epoch * self.horizon.steps_per_epoch,
            "example": -(-self.examples // self.horizon.batch_size),
        }
        return before[unit] + step - self.first


class Calendar(NamedTuple):
    """The phases of a run, of which the first begins with it. Steps count from 0."""

    phases: tuple[Phase, ...]

    def at(self, step: int) -> Phase:
        """The phase of a step."""
        return next(p for p in reversed(self.phases) if p.first <= max(step, 0))

    def batch_at(self, step: int) -> int:
        """The examples of a step, of all workers together."""
        return self.at(step).horizon.batch_size

    def epochs(self, step: int) -> Fraction:
        """The epochs before a step; whole numbers are the ends of epochs."""
        phase = self.at(step)
        return Fraction(phase.as_if(step), phase.horizon.steps_per_epoch)

    def epoch_at(self, step: int) -> int:
        """The epoch of a step, from 1."""
        return int(self.epochs(step)) + 1

    def examples(self, step: int) -> int:
        """The examples before a step."""
        phase = self.at(step)
        return phase.examples + (step - phase.first) * phase.horizon.batch_size

    def end_of(self, epoch: int) -> int:
        """The steps in so many epochs."""
        return self.steps_of(f"{epoch} epochs", may_be_zero=True)

    def seen_from(self, phase: Phase, step: int) -> int | float:
        """The epochs before a step, in steps of a phase.

        Example:
          >>> run = calendar_of(Horizon(10, 32)).then(20, Horizon(5, 64))
          >>> run.seen_from(run.at(0), step=25), run.seen_from(run.at(25), step=11)
          (30, 5.5)
        """
        steps = self.epochs(step) * phase.horizon.steps_per_epoch
        return int(steps) if steps.denominator == 1 else float(steps)

    def steps_of(self, duration: str, *, may_be_zero: bool = False) -> int:
        """The steps in a duration, counted from the beginning of the run.

        Example:
          >>> run = calendar_of(Horizon(10, 32)).then(20, Horizon(5, 64))
          >>> run.steps_of("4 epochs"), run.steps_of("704 examples")
          (30, 21)
        """
        found = read_duration(duration, may_be_zero=may_be_zero)
        for phase in reversed(self.phases):
            before = {
                "step": phase.first,
                "epoch": phase.epoch,
                "example": phase.examples,
            }
            left = found.amount - before[found.unit]
            if left > 0:
                return phase.first + steps_in(
                    found._replace(amount=left), phase.horizon
                )
        return 0

    def steps_at(self, config: Any, key: str) -> int:
        """The steps of the duration at a key of a config."""
        with within(key):
            return self.steps_of(config[key])

    def every(self, config: Any, key: str) -> Callable[[int], bool]:
        """Make a function that says whether the interval at a key ends after a step.

        An interval is as long as it says in each phase, and one of epochs ends with
        epochs. An empty one never ends.

        Args:
          config: of the run.
          key: of a duration.

        Returns:
          A function of the number of finished steps.
        """
        with within(key):
            found = read_duration(config[key])
            lengths = {phase: steps_in(found, phase.horizon) for phase in self.phases}

        def ends(done: int) -> bool:
            phase = self.at(done - 1)
            length = lengths[phase]
            return length > 0 and phase.as_if(done, found.unit) % length == 0

        return ends

    def epochs_every(self, config: Any, key: str) -> int:
        """The epochs of the interval at a key; refuses parts of an epoch."""
        with within(key):
            found = read_duration(config[key])
            lengths = [
                Fraction(steps_in(found, phase.horizon), phase.horizon.steps_per_epoch)
                for phase in self.phases
            ]
        whole = -(-lengths[0] // 1)
        if any(length != whole for length in lengths):
            shown = " and ".join(dict.fromkeys(f"{float(x):.3g}" for x in lengths))
            steps = " and ".join(
                dict.fromkeys(str(p.horizon.steps_per_epoch) for p in self.phases)
            )
            raise UserError(
                f"{key} counts in whole epochs, and {config[key]!r} is {shown} epochs "
                f"of {steps} steps: write for example '{whole} epochs'"
            )
        return whole

    def then(self, first: int, horizon: Horizon) -> "Calendar":
        """The calendar with another phase from a step on.

        Args:
          first: its first step, in the last phase so far.
          horizon: its epochs and steps.

        Raises:
          UserError: no epoch ends before that step.
        """
        last = self.phases[-1]
        if horizon == last.horizon:
            return self
        epochs, examples = self.epochs(first), self.examples(first)
        if epochs.denominator > 1:
            raise UserError(
                "another batch_size begins with an epoch, and step "
                f"{first + 1} is {float(epochs):.4g} epochs into the run: write for "
                f"example '{round(epochs) or 1} epochs'"
            )
        kept = self.phases if last.first < first else self.phases[:-1]
        return Calendar((*kept, Phase(first, int(epochs), examples, horizon)))


def calendar_of(horizon: Horizon) -> Calendar:
    """The calendar of a run whose steps are all alike."""
    return Calendar((Phase(0, 0, 0, horizon),))
