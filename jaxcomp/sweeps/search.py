"""The best value of a number, by doubling and halving it."""

import math
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.specs import Range, check

__all__ = ["Search", "proposals", "search"]


class Search(NamedTuple):
    """A number that is looked for, such as a step size."""

    start: float
    factor: float
    most: int  # values that are tried


def search(start: float, factor: float = 2.0, most: int = 9) -> Search:
    """Look for the best value of a key, doubling and halving until it lies inside.

    Each value that is tried is a run of the sweep. It begins with `start`, `start *
    factor` and `start / factor`. While the best of all values is the largest or the
    smallest, the next one on that side is tried. A run that fails, such as one that
    diverges, is worse than all others.

    Args:
      start: the first value, positive.
      factor: between neighbouring values, more than 1.
      most: how many values are tried, at least 3.

    Example:
      >>> search(start=0.1)
      Search(start=0.1, factor=2.0, most=9)
      >>> search(start=-1)
      Traceback (most recent call last):
      jaxcomp.errors.UserError: search: start is a positive number, not -1

    References:
      Koloskova, Lin, Stich, Jaggi, "Decentralized Deep Learning with Arbitrary
      Communication Compression", 2020, https://arxiv.org/abs/1907.09356
    """
    for name, value, least in (("start", start, 0), ("factor", factor, 1)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least < value < math.inf:
            above = "a positive number" if not least else "a number above 1"
            raise UserError(f"search: {name} is {above}, not {value!r}")
    check(Annotated[int, Range(least=3)], "search: most", most)
    return Search(float(start), float(factor), most)


def proposals(looked: Search, scores: Mapping[float, float]) -> list[float]:
    """The values to try next; none where the search has ended.

    Args:
      looked: what is looked for.
      scores: of the values that have been tried, more is better; -inf where a run has
        failed.

    Example:
      >>> proposals(search(1.0), {})
      [1.0, 2.0, 0.5]
      >>> proposals(search(1.0), {1.0: 0.3, 2.0: 0.4, 0.5: 0.1})
      [4.0]
      >>> proposals(search(1.0), {1.0: 0.3, 2.0: 0.4, 0.5: 0.1, 4.0: 0.2})
      []
    """
    powers = {p: value_at(looked, p) for p in range(-looked.most, looked.most + 1)}
    tried = {p: scores[value] for p, value in powers.items() if value in scores}
    first = [p for p in (0, 1, -1) if p not in tried]
    if first:
        return [powers[p] for p in first]
    # Of equal ones the smallest: where all of them fail, that is the side to look at.
    best = max(sorted(tried), key=lambda p: tried[p])
    beside = {max(tried): max(tried) + 1, min(tried): min(tried) - 1}
    return [powers[beside[best]]] if best in beside and len(tried) < looked.most else []


def value_at(looked: Search, power: int) -> float:
    """A value of a search, in few digits, so that it is the same wherever it is made.

    Example:
      >>> value_at(search(0.1), 1), value_at(search(0.1), -3)
      (0.2, 0.0125)
    """
    return float(f"{looked.start * looked.factor**power:.6g}")
