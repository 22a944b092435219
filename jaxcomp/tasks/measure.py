"""The figure by which a task is judged, beside its loss."""

import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["ACCURACY", "PERPLEXITY", "Measure"]


class Measure(NamedTuple):
    """The figure that a run shows, and by which it chooses its best checkpoint.

    It is a column of steps.csv, and of metrics.csv after `train_`, `test_`, `own_` and
    `worst_`.
    """

    name: str
    of: Callable[[float, float], float]  # (mean loss, share of hits) -> value
    text: Callable[[float], str]
    larger: bool = True  # is better

    def beats(self, value: float, best: float | None) -> bool:
        """Whether a value is better than the best so far; None is worse than any.

        Example:
          >>> PERPLEXITY.beats(3.0, 4.0), ACCURACY.beats(0.3, 0.4)
          (True, False)
        """
        return best is None or (value > best if self.larger else value < best)

    def better(self, value: float, best: float | None) -> float:
        """The better of a value and the best so far."""
        return value if best is None or self.beats(value, best) else best

    def worst(self, values: list[float]) -> float:
        """The worst of several values."""
        return min(values) if self.larger else max(values)


def _perplexity(loss: float, hits: float) -> float:
    del hits
    return math.exp(loss) if loss < 700 else math.inf


ACCURACY = Measure("accuracy", lambda loss, hits: hits, "{:.2%}".format)
PERPLEXITY = Measure("perplexity", _perplexity, "{:,.2f}".format, larger=False)
