"""A drawing of the graph of workers."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

EDGE = 1.15  # half the width of a panel in the units of positions

Edge = tuple[int, int, float]  # source, destination, weight


class GraphLayout(NamedTuple):
    """Where workers stand, and how a line is drawn that would cross a third worker."""

    positions: np.ndarray  # [n, 2] in -1 .. 1
    # "straight" nevertheless, "bend" towards the middle, or "cut" to a stub at each end
    crossing: str = "straight"


class DrawnRound(NamedTuple):
    """One graph of a figure; an edge without its reverse becomes an arrow."""

    caption: str
    edges: Sequence[Edge]


class Drawing(NamedTuple):
    """A graph to be drawn."""

    title: str
    note: str
    layout: GraphLayout
    rounds: Sequence[DrawnRound]


class Stroke(NamedTuple):
    """A line between two places."""

    start: np.ndarray
    end: np.ndarray
    weight: float
    bend: float = 0.0  # how far it leaves the straight line, as a share of its length
    is_arrow: bool = False


def layout_of(name: str, sizes: Sequence[int]) -> GraphLayout:
    """A layout by its name.

    Args:
      name: circle, hub, grid or two_columns.
      sizes: its arguments.

    Example:
      >>> layout_of("grid", [1, 2]).positions.tolist()
      [[-0.5, 0.0], [0.5, 0.0]]
    """
    known = {"circle": circle, "hub": hub, "grid": grid, "two_columns": two_columns}
    return known[name](*sizes)


def circle(workers: int) -> GraphLayout:
    """All workers on a circle, clockwise from the top.

    Example:
      >>> circle(4).positions.round(3)[1].tolist()
      [1.0, 0.0]
    """
    return hub(1) if workers == 1 else GraphLayout(_around(workers), "bend")


def hub(workers: int) -> GraphLayout:
    """Worker 0 in the middle, the others around it."""
    return GraphLayout(np.concatenate([np.zeros((1, 2)), _around(workers - 1)]))


def grid(rows: int, columns: int) -> GraphLayout:
    """Workers row by row from the top; a torus closes where lines leave the grid."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    centred = np.stack([x - (columns - 1) / 2, (rows - 1) / 2 - y], axis=1)
    return GraphLayout(2 * centred / max(rows, columns), "cut")


def two_columns(left: int, right: int) -> GraphLayout:
    """The first workers on the left, the others on the right, from the top."""
    heights = [np.linspace(1, -1, count) for count in (left, right)]
    sides = np.repeat([-0.8, 0.8], [left, right])
    return GraphLayout(np.stack([sides, np.concatenate(heights)], axis=1))


def spacing(at: np.ndarray) -> float:
    """The distance of the two workers that are closest to each other."""
    distances = np.linalg.norm(at[:, None] - at[None], axis=2)
    return min(distances[~np.eye(len(at), dtype=bool)], default=0.6)


def half_height(at: np.ndarray) -> float:
    """Half the height that a panel needs: less for flat grids, with room for stubs."""
    room = np.max(np.abs(at[:, 1])) + 0.5 * spacing(at) + 0.05
    return float(np.clip(room, 0.2, EDGE))


def strokes(
    layout: GraphLayout, edges: Sequence[Edge], room: float
) -> Iterator[Stroke]:
    """The lines of a round; of two edges back and forth with one weight, one.

    Args:
      layout: where the workers stand.
      edges: of the round.
      room: that a worker takes around its place.
    """
    at = layout.positions
    weights = {(i, j): weight for i, j, weight in edges}
    for (i, j), weight in weights.items():
        mutual = weights.get((j, i)) == weight
        if mutual and i > j:
            continue
        bend = 0.0 if mutual or (j, i) not in weights else 0.15
        if _crosses(at, i, j, room):
            if layout.crossing == "cut":
                for start, end in _stubs(at, i, j):
                    yield Stroke(start, end, weight)
                continue
            bend = _bend(at, i, j) if layout.crossing == "bend" else bend
        yield Stroke(at[i], at[j], weight, bend, is_arrow=not mutual)


def _around(count: int) -> np.ndarray:
    angles = 2 * np.pi * np.arange(count) / max(1, count)
    return np.stack([np.sin(angles), np.cos(angles)], axis=1)


def _crosses(at: np.ndarray, i: int, j: int, room: float) -> bool:
    """Whether a third worker stands within `room` of the straight line."""
    along = at[j] - at[i]
    share = np.clip((at - at[i]) @ along / (along @ along), 0, 1)
    distance = np.linalg.norm(at[i] + share[:, None] * along - at, axis=1)
    distance[[i, j]] = np.inf
    return bool(np.min(distance) < room)


def _bend(at: np.ndarray, i: int, j: int) -> float:
    """How much an arc bends to the middle: chords close to the rim bend most."""
    middle, (dx, dy) = (at[i] + at[j]) / 2, at[j] - at[i]
    inwards = np.sign(-middle @ np.array([dy, -dx]))
    return float(0.3 * inwards * np.linalg.norm(middle))


def _stubs(at: np.ndarray, i: int, j: int) -> list[tuple[Any, Any]]:
    """Short lines that leave both ends away from each other."""
    step = 0.5 * spacing(at) * (at[j] - at[i]) / np.linalg.norm(at[j] - at[i])
    return [(at[i], at[i] - step), (at[j], at[j] + step)]


_UNIT = 150  # pixels of a unit of positions
_PAD = 0.2  # units around the positions


def graph_of(facts: Mapping[str, Any], member: str = "worker") -> Drawing | None:
    """The graph that a run or `jaxcomp topology` describes; None without edges.

    Args:
      facts: as `jaxcomp.mixers.gossip.topology` gives them.
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
    members = f"{count} {member}{'' if count == 1 else 's'}"
    note = f"{members}, degree {degree}, gap {gap:.3g}"
    weights = [weight for edges in rounds for *_, weight in edges]
    if weights:
        low, high = f"{min(weights):.3g}", f"{max(weights):.3g}"
        note += f", weight {low}" if low == high else f", weights {low} to {high}"
    captioned = [
        DrawnRound(f"round {i}" if len(rounds) > 1 else "", edges)
        for i, edges in enumerate(rounds, 1)
    ]
    return Drawing(title, note, layout, captioned)


def draw_round(graph: Drawing, number: int) -> str:
    """One round as an SVG element: numbered circles, and lines as wide as weights."""
    layout, step = graph.layout, graph.rounds[number]
    at = layout.positions * [_UNIT, -_UNIT]
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
