"""What a plot shows, as data. `svg` draws it for a page, `png` for a picture file."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.units import Unit

__all__ = ["Axis", "Panel", "Plot", "Reference", "Series"]


class Axis(NamedTuple):
    """One axis of a panel."""

    title: str
    unit: Unit
    log: bool = False
    # Where it ends although there are larger values, such as the loss of a run that
    # diverged, beside which all others would be a flat line.
    most: float = float("inf")


class Series(NamedTuple):
    """One curve, or points; the arrays have one entry for each point, all finite."""

    key: str  # the same in all plots of a page
    label: str
    slot: int  # its colour and dashes
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray  # of a band around the curve; y itself where there is none
    high: np.ndarray
    points: bool = False  # that are not joined by a line
    short: str = ""  # the label where there is little room; "": there is none


class Reference(NamedTuple):
    """A dashed line that says what a value means."""

    at: float  # of the vertical axis
    text: str


class Panel(NamedTuple):
    """Curves over one horizontal axis."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    references: Sequence[Reference] = ()
    # Points through which a line without a label goes, such as the best there is.
    front: Sequence[tuple[float, float]] = ()


class Plot(NamedTuple):
    """Panels side by side, with one title."""

    title: str
    caption: str
    panels: Sequence[Panel]
    # A label for the switch to the other scale of the vertical axes; "" for none.
    switch: str = ""
    wide: bool = False  # larger panels, where one or two stand alone


def drawable(panel: Panel) -> list[Series]:
    """The series of a panel without the points that its axes cannot show.

    Example:
      >>> y = np.array([0.0, 1.0])
      >>> one = Series("a", "a", 0, np.array([1.0, 2.0]), y, y, y)
      >>> axes = Axis("step", "count"), Axis("loss", "number", log=True)
      >>> [series.x.tolist() for series in drawable(Panel(*axes, [one]))]
      [[2.0]]
    """
    found = []
    for series in panel.series:
        seen = shown(panel, series)
        if seen.any():
            low = np.where(series.low > 0, series.low, series.y)
            low = low if panel.y.log else series.low
            arrays = (series.x, series.y, low, series.high)
            x, y, low, high = (values[seen] for values in arrays)
            found.append(series._replace(x=x, y=y, low=low, high=high))
    return found


def shown(panel: Panel, series: Series) -> np.ndarray:
    """Which points its panel can show: on logarithmic axes those above 0."""
    seen = np.isfinite(series.x) & np.isfinite(series.y)
    if panel.x.log:
        seen &= series.x > 0
    if panel.y.log:
        seen &= series.y > 0
    return seen
