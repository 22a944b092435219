"""Labels beside curves and points, moved so that no two overlap."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Box", "apart", "beside", "cut"]


class Box(NamedTuple):
    """A rectangle: its left upper corner, and its size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: "Box") -> bool:
        """Whether two rectangles overlap."""
        across = self.x < other.x + other.width and other.x < self.x + self.width
        return across and (
            self.y < other.y + other.height and other.y < self.y + self.height
        )


def apart(heights: Sequence[float], size: float, low: float, high: float) -> np.ndarray:
    """Heights of labels of one size, moved so that no two overlap.

    Args:
      heights: that are wanted.
      size: of each label.
      low: the least height.
      high: the largest.

    Example:
      >>> apart([10, 11, 40], 6, 0, 50).tolist()
      [7.5, 13.5, 40.0]
    """
    wanted = np.clip(np.asarray(heights, float), low, high)
    order = np.argsort(wanted, kind="stable")
    # Groups of labels that touch each other stand around the mean of what they want.
    groups: list[list[float]] = []
    for height in wanted[order]:
        groups.append([float(height)])
        while len(groups) > 1 and _top(groups[-2], size) > _bottom(groups[-1], size):
            last = groups.pop()
            groups[-1] += last
    placed: list[float] = []
    for group in groups:
        first = _bottom(group, size) + size / 2
        placed += [first + i * size for i in range(len(group))]
    found = np.array(placed)
    if found.size:
        found -= max(0.0, found[-1] - high)
        found += max(0.0, low - found[0])
    back = np.empty_like(found)
    back[order] = found
    return back


def beside(at: tuple[float, float], box: Box, taken: Sequence[Box], area: Box) -> Box:
    """A place for the label of a point: where it is free, inside of an area.

    Args:
      at: the point.
      box: of the label; its corner is of no meaning.
      taken: what it should not cover.
      area: in which it should stay.
    """
    x, y, w, h = *at, box.width, box.height
    places = [
        Box(x + 9, y - h / 2, w, h),
        Box(x - 9 - w, y - h / 2, w, h),
        Box(x - w / 2, y - 9 - h, w, h),
        Box(x - w / 2, y + 9, w, h),
        *(Box(x + 9, y - h / 2 + d * h, w, h) for d in (-1, 1, -2, 2)),
        *(Box(x - 9 - w, y - h / 2 + d * h, w, h) for d in (-1, 1, -2, 2)),
    ]

    def cost(place: Box) -> float:
        out = max(0.0, area.x - place.x, place.x + w - area.x - area.width)
        out += max(0.0, area.y - place.y, place.y + h - area.y - area.height)
        return 10 * out + 100 * sum(place.meets(other) for other in taken)

    return min(places, key=cost)


def cut(text: str, most: int) -> str:
    """A text of so many characters at most.

    Example:
      >>> cut("error_feedback", 8), cut("sign", 8)
      ('error_f…', 'sign')
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _bottom(group: Sequence[float], size: float) -> float:
    return float(np.mean(group)) - size * len(group) / 2


def _top(group: Sequence[float], size: float) -> float:
    return float(np.mean(group)) + size * len(group) / 2
