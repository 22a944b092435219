"""The plot of the runs of a convex report: their curves, labels and colours."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from jaxcomp.report import style
from jaxcomp.report.convex_plot import Block, Curve, plot_suboptimality
from jaxcomp.report.evaluations import evaluations
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import convex_problem, method_names
from jaxcomp.runs.errors import RunError

__all__ = ["COLOURS", "draw_runs"]

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
# What fits right of the plot: characters in a line, and number of lines.
_ACROSS, _DOWN = 21, 17


def draw_runs(runs: Sequence[Run]) -> Figure:
    """Draw the suboptimality of convex runs over bytes and over steps.

    Args:
      runs: from `read_convex`. Those of one problem share a row of the figure.

    Returns:
      The figure.

    Raises:
      RunError: there are more runs than colours, or nothing to draw.
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


def _seen(run: Run) -> np.ndarray:
    """Which evaluations can be drawn on logarithmic axes: those above 0."""
    found = evaluations(run)
    level = found["suboptimality"]
    return np.isfinite(level) & (level > 0) & (found["bytes_sent"] > 0)


def _curve(run: Run, label: str, colour: str) -> Curve:
    seen = _seen(run)
    found = {name: values[seen] for name, values in evaluations(run).items()}
    middle, low, high = (found[x] for x in ("suboptimality", "lowest", "highest"))
    return Curve(
        label,
        colour,
        steps=found["step"],
        sent=found["bytes_sent"],
        middle=middle,
        low=np.where(low > 0, low, middle),
        high=np.where(np.isfinite(high), high, middle),
    )


def _labels(runs: Sequence[Run]) -> list[str]:
    """Methods, or the names of the folders where methods do not tell runs apart."""
    methods = [method_names(run.config, run.environment) for run in runs]
    for labels in (methods, [run.name for run in runs]):
        names = [_wrapped(x or run.name) for x, run in zip(labels, runs, strict=True)]
        keys = [(convex_problem(r.config), n) for r, n in zip(runs, names, strict=True)]
        lines = sum(name.count("\n") + 1 for name in set(names))
        if len(set(keys)) == len(keys) and lines <= _DOWN:
            return names
    return [_wrapped(f"{number} {run.name}") for number, run in enumerate(runs, 1)]


def _wrapped(text: str) -> str:
    # A line should not end in "on"; wrapping does not break at such spaces.
    joined = text.replace(" on ", " on\N{NO-BREAK SPACE}")
    lines = textwrap.wrap(
        joined, _ACROSS, break_on_hyphens=False, max_lines=3, placeholder="…"
    )
    return "\n".join(lines)
