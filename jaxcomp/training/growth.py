"""Detect, while a run goes on, that the residual of a memory grows without end."""

import math
from typing import NamedTuple

__all__ = ["Growth", "growth_line"]

LARGE = 100  # times the largest gradient so far; what is late is seldom that much
STEEP = 4  # times, from a step to the step of twice its number


class Growth(NamedTuple):
    """The residual at steps 1, 2, 4, 8, ..., and the largest gradient so far.

    What a contraction leaves settles; until then it grows about as the number of steps,
    so it doubles where they double. Where the error feeds itself it grows by a factor
    at every step, and soon by more than any power of their number.
    """

    gradient: float = 0.0  # largest norm so far
    peak: float = 0.0  # largest residual since the last of these steps
    last: float = 0.0  # until that step
    before: float = 0.0  # until the one before
    grows: bool = False

    def after(self, step: int, gradient: float, residual: float) -> "Growth":
        """Return this with one more step.

        Args:
          step: its number, from 1.
          gradient: norm of the local gradient.
          residual: norm of what is kept.

        Example:
          >>> growth = Growth()
          >>> for step in range(1, 33):
          ...     growth = growth.after(step, gradient=1.0, residual=1.5**step)
          >>> growth.grows
          True
        """
        known = self._replace(
            gradient=max(self.gradient, gradient if math.isfinite(gradient) else 0.0),
            peak=max(self.peak, residual),
        )
        if step & (step - 1):
            return known
        now = known.peak
        is_steep = now > STEEP * self.last and self.last > STEEP * self.before
        return Growth(
            gradient=known.gradient,
            last=now,
            before=self.last,
            grows=is_steep and 0 < LARGE * known.gradient < now,
        )


def growth_line(step: int, growth: Growth) -> str:
    """The warning on the console when the growth is first seen."""
    return (
        f"WARNING at step {step}: what is kept and not sent grows without end. It is "
        f"{growth.last / growth.gradient:.3g} times the largest gradient so far, and "
        f"was {growth.before / growth.gradient:.3g} times that at half of the steps. "
        "The compressor loses more than there is: see docs/methods.md#error_feedback."
    )
