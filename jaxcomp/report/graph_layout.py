"""Where the workers of a graph stand, and the lines between them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "EDGE",
    "Graph",
    "Layout",
    "Round",
    "Stroke",
    "circle",
    "grid",
    "half_height",
    "hub",
    "layout_of",
    "spacing",
    "strokes",
    "two_columns",
]

EDGE = 1.15  # half the width of a panel in the units of positions

Edge = tuple[int, int, float]  # source, destination, weight


class Layout(NamedTuple):
    """Where workers stand, and how a line is drawn that would cross a third worker."""

    positions: np.ndarray  # [n, 2] in -1 .. 1
    # "straight" nevertheless, "bend" towards the middle, or "cut" to a stub at each end
    crossing: str = "straight"


class Round(NamedTuple):
    """One graph of a figure; an edge without its reverse becomes an arrow."""

    caption: str
    edges: Sequence[Edge]


class Graph(NamedTuple):
    """A graph to be drawn."""

    title: str
    note: str
    layout: Layout
    rounds: Sequence[Round]


class Stroke(NamedTuple):
    """A line between two places."""

    start: np.ndarray
    end: np.ndarray
    weight: float
    bend: float = 0.0  # how far it leaves the straight line, as a share of its length
    is_arrow: bool = False
    is_stub: bool = False  # its end is no worker


def layout_of(name: str, sizes: Sequence[int]) -> Layout:
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


def circle(workers: int) -> Layout:
    """All workers on a circle, clockwise from the top.

    Example:
      >>> circle(4).positions.round(3)[1].tolist()
      [1.0, 0.0]
    """
    return hub(1) if workers == 1 else Layout(_around(workers), "bend")


def hub(workers: int) -> Layout:
    """Worker 0 in the middle, the others around it."""
    return Layout(np.concatenate([np.zeros((1, 2)), _around(workers - 1)]))


def grid(rows: int, columns: int) -> Layout:
    """Workers row by row from the top; a torus closes where lines leave the grid."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    centred = np.stack([x - (columns - 1) / 2, (rows - 1) / 2 - y], axis=1)
    return Layout(2 * centred / max(rows, columns), "cut")


def two_columns(left: int, right: int) -> Layout:
    """The first workers on the left, the others on the right, from the top."""
    heights = [np.linspace(1, -1, count) for count in (left, right)]
    sides = np.repeat([-0.8, 0.8], [left, right])
    return Layout(np.stack([sides, np.concatenate(heights)], axis=1))


def spacing(at: np.ndarray) -> float:
    """The distance of the two workers that are closest to each other."""
    distances = np.linalg.norm(at[:, None] - at[None], axis=2)
    return min(distances[~np.eye(len(at), dtype=bool)], default=0.6)


def half_height(at: np.ndarray) -> float:
    """Half the height that a panel needs: less for flat grids, with room for stubs."""
    room = np.max(np.abs(at[:, 1])) + 0.5 * spacing(at) + 0.05
    return float(np.clip(room, 0.2, EDGE))


def strokes(layout: Layout, edges: Sequence[Edge], room: float) -> Iterator[Stroke]:
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
                    yield Stroke(start, end, weight, is_stub=True)
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
