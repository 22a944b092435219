"""The graph of a gossip run, as its folder describes it, as an SVG element."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from jaxcomp.report.graph_layout import (
    Graph,
    Layout,
    Round,
    Stroke,
    half_height,
    layout_of,
    spacing,
    strokes,
)

__all__ = ["draw_round", "graph_of"]

_UNIT = 150  # pixels of a unit of positions
_PAD = 0.2  # units around the positions


def graph_of(facts: Mapping[str, Any], member: str = "worker") -> Graph | None:
    """The graph that a run or `jaxcomp topology` describes; None without edges.

    Args:
      facts: as `jaxcomp.gossip.picture` gives them.
      member: what a circle stands for.

    Example:
      >>> facts = {"name": "pair", "workers": 2, "degree": 1, "spectral_gap": 1.0}
      >>> facts |= {"layout": ["circle", 2], "rounds": [[[0, 1, 0.5], [1, 0, 0.5]]]}
      >>> graph = graph_of(facts)
      >>> graph.note, graph.rounds[0].edges[0]
      ('2 workers, degree 1, gap 1, weight 0.5', (0, 1, 0.5))
    """
    try:
        rounds = [
            [(int(i), int(j), float(weight)) for i, j, weight in edges]
            for edges in facts["rounds"]
        ]
        name, *sizes = facts["layout"]
        layout = layout_of(name, sizes)
        count, degree = int(facts["workers"]), int(facts["degree"])
        gap, title = float(facts["spectral_gap"]), str(facts["name"])
    except (KeyError, TypeError, ValueError):  # of another version, or damaged
        return None
    if not rounds or len(layout.positions) != count:
        return None
    note = (
        f"{count} {member}{'' if count == 1 else 's'}, degree {degree}, gap {gap:.3g}"
    )
    weights = [weight for edges in rounds for *_, weight in edges]
    if weights:
        low, high = f"{min(weights):.3g}", f"{max(weights):.3g}"
        note += f", weight {low}" if low == high else f", weights {low} to {high}"
    captions = [
        f"round {i}" if len(rounds) > 1 else "" for i in range(1, len(rounds) + 1)
    ]
    return Graph(
        title,
        note,
        layout,
        [Round(c, e) for c, e in zip(captions, rounds, strict=True)],
    )


def draw_round(graph: Graph, number: int) -> str:
    """One round as an SVG element: numbered circles, and lines as wide as weights."""
    layout, step = graph.layout, graph.rounds[number]
    at = _places(layout)
    radius = float(np.clip(0.34 * spacing(layout.positions) * _UNIT, 2, 14))
    largest = max((weight for *_, weight in step.edges), default=1.0)
    width = 2 * (1 + _PAD) * _UNIT
    height = 2 * (half_height(layout.positions) + 0.05) * _UNIT
    shade = float(np.clip(3.2 * len(at) / (len(step.edges) + 1), 0.3, 0.9))
    lines = "".join(
        _line(stroke, largest, radius)
        for stroke in strokes(layout, step.edges, 1.2 * radius / _UNIT)
    )
    nodes = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>' for x, y in at
    )
    texts = ""
    if radius >= 7:
        texts = "".join(
            f'<text x="{x:.1f}" y="{y + 0.36 * radius:.1f}" '
            f'font-size="{min(12, radius):.1f}">{i}</text>'
            for i, (x, y) in enumerate(at)
        )
    label = escape(f"graph {graph.title}, {step.caption} {graph.note}")
    box = f"{-width / 2:.1f} {-height / 2:.1f} {width:.1f} {height:.1f}"
    return (
        f'<svg class="graph" viewBox="{box}" role="img" aria-label="{label}">'
        f'<g class="edges" opacity="{shade:.2f}">{lines}</g>'
        f'<g class="nodes">{nodes}{texts}</g></svg>'
    )


def _places(layout: Layout) -> np.ndarray:
    return layout.positions * [_UNIT, -_UNIT]


def _line(stroke: Stroke, largest: float, radius: float) -> str:
    flip = np.array([_UNIT, -_UNIT])
    start, end = stroke.start * flip, stroke.end * flip
    along = stroke.end - stroke.start
    aside = stroke.bend * np.array([along[1], -along[0]])
    middle = ((stroke.start + stroke.end) / 2 + aside) * flip
    width = 0.8 + 1.8 * stroke.weight / largest
    d = f"M{start[0]:.1f} {start[1]:.1f}"
    d += f"Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    line = f'<path d="{d}" stroke-width="{width:.1f}"/>'
    return line + (_head(middle, end, radius) if stroke.is_arrow else "")


def _head(start: np.ndarray, end: np.ndarray, radius: float) -> str:
    """The head of an arrow that touches the circle around its end."""
    way = (end - start) / (np.linalg.norm(end - start) or 1.0)
    aside, tip = np.array([-way[1], way[0]]), end - way * radius
    size = 5 + 0.3 * radius
    left, right = (tip - size * way + s * 0.45 * size * aside for s in (1, -1))
    corners = "L".join(f"{x:.1f} {y:.1f}" for x, y in (tip, left, right))
    return f'<path class="head" d="M{corners}Z"/>'
