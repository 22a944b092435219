"""The plot of the runs of a convex report: their curves, labels and colours."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxcomp.report import style
from jaxcomp.report.convex_folder import ConvexRun, evaluations
from jaxcomp.report.convex_plot import Block, Curve, plot_suboptimality
from jaxcomp.report.titles import convex_problem, method_names
from jaxcomp.runs.errors import RunError

COLOURS = (
    style.BLUE,
    style.ORANGE,
    style.GREEN,
    style.PINK,
    style.INK,
    style.SKY,
    style.YELLOW,
    style.GREY,
)
# What fits right of the plot: characters in a line, and lines.
ACROSS, DOWN = 21, 17


def draw_runs(runs: Sequence[ConvexRun]) -> Figure:
    """Draws the suboptimality of convex runs over bytes and over steps.

    Args:
        runs: The runs. Those of one problem share a row of the figure.

    Returns:
        The figure.

    Raises:
        RunError: If there are more runs than colours, or nothing to draw.
    """
    drawable = [run for run in runs if _seen(run).any()]
    if not drawable:
        raise RunError(
            f"no suboptimality above 0 in {runs[0].name}: there is nothing to draw"
        )
    names = _labels(drawable)
    unique = list(dict.fromkeys(names))
    if len(unique) > len(COLOURS):
        raise RunError(
            f"got {len(unique)} convex runs, expected {len(COLOURS)} at most: their "
            f"curves could not be told apart"
        )
    colours = dict(zip(unique, COLOURS, strict=False))
    rows: dict[str, list[Curve]] = {}
    for run, name in zip(drawable, names, strict=True):
        curves = rows.setdefault(convex_problem(run.config), [])
        curves.append(_curve(run, name, colours[name]))
    return plot_suboptimality([Block(title, curves) for title, curves in rows.items()])


def _seen(run: ConvexRun) -> np.ndarray:
    found = evaluations(run)
    # A logarithmic axis has no place for 0, nor for what rounding left below it.
    return np.isfinite(found.middle) & (found.middle > 0) & (found.sent > 0)


def _curve(run: ConvexRun, label: str, colour: str) -> Curve:
    found, seen = evaluations(run), _seen(run)
    middle, low, high = (x[seen] for x in (found.middle, found.low, found.high))
    return Curve(
        label,
        colour,
        steps=found.step[seen],
        sent=found.sent[seen],
        middle=middle,
        low=np.where(low > 0, low, middle),
        high=np.where(np.isfinite(high), high, middle),
    )


def _labels(runs: Sequence[ConvexRun]) -> list[str]:
    """Methods, or the names of the folders where methods do not tell runs apart."""
    ways: tuple[Callable[[ConvexRun], str], ...] = (
        lambda run: method_names(run.config, run.environment.get("method")),
        lambda run: run.name,
    )
    for way in ways:
        names = [_wrapped(way(run) or run.name) for run in runs]
        keys = [(convex_problem(r.config), n) for r, n in zip(runs, names, strict=True)]
        lines = sum(name.count("\n") + 1 for name in set(names))
        if len(set(keys)) == len(keys) and lines <= DOWN:
            return names
    return [_wrapped(f"{number} {run.name}") for number, run in enumerate(runs, 1)]


def _wrapped(text: str) -> str:
    options: dict[str, Any] = {"max_lines": 3, "placeholder": "…"}
    # A line that ends in "on" reads badly; wrapping leaves such spaces alone.
    joined = text.replace(" on ", " on\N{NO-BREAK SPACE}")
    return "\n".join(textwrap.wrap(joined, ACROSS, break_on_hyphens=False, **options))
