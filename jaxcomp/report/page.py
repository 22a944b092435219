"""Pages and drawings from templates."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup, escape

from jaxcomp.core.files import write_atomically
from jaxcomp.report.graph import Drawing, draw_round
from jaxcomp.report.plot import UNITS, Axis, Panel, Plot, Series, drawable
from jaxcomp.report.svg import CHARACTER, NARROW, WHOLE, WIDE, cut, draw_svg, slot_class

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def breaking(text: object) -> Markup:
    """A text that a page may break where names have joints, and not within words.

    Example:
      >>> print(breaking("top_k(keep=0.1) < 1"))
      top_<wbr>k<wbr>(keep=0.1) &lt; 1
    """
    parts = re.split(r"(?=\()|(?<=[|_/])|(?<=,)(?=\D)", str(text))
    return Markup("<wbr>").join(map(escape, parts))


_TEMPLATES.filters["breaking"] = breaking


class Card(NamedTuple):
    """One headline number."""

    name: str
    value: str
    note: str


def render(template: str, *, title: str, subtitle: str, **content: Any) -> str:
    """Render a page; all text in it is escaped.

    Args:
      template: name of a file in `templates`.
      title: of the page.
      subtitle: a line below it.
      **content: values of the template's variables. A table is a list of rows, each a
        dict from heading to text. `alarms` are shown at the top.

    Returns:
      The page.

    Example:
      >>> "<h1>a &lt; b</h1>" in render("page.html", title="a < b", subtitle="run 1")
      True
    """
    whole = {"alarms": [], "title": title, "subtitle": subtitle}
    return _TEMPLATES.get_template(template).render(whole | content)


class LegendEntry(NamedTuple):
    """An entry of a legend."""

    key: str
    label: str
    slot: str  # classes of its colour and dashes


class DataTable(NamedTuple):
    """The points of panels that have one vertical axis."""

    name: str
    caption: str
    heads: list[str]
    rows: list[tuple[str, list[str]]]  # key of the series, cells


def draw_plot(name: str, plot: Plot) -> dict[str, Any]:
    """A plot as a page shows it: its elements, their data and a legend.

    Args:
      name: of the plot, unique in its page.
      plot: to draw.

    Returns:
      What the plot says of itself; `tiles`, of each panel the elements of which the
      page shows one; `tables`, one of all panels with one vertical axis; and `legend`,
      empty where there is one series.
    """
    groups: dict[str, list[Panel]] = {}
    for panel in plot.panels:
        groups.setdefault(panel.y.title, []).append(panel)
    names = {title: f"{name}-{i}" for i, title in enumerate(groups)}
    tiles = []
    for panel in plot.panels:
        group, title = groups[panel.y.title], panel.y.title
        column = 1 + [one is panel for one in group].index(True)
        tiles.append(_elements(panel, plot, names[title], column, len(group)))
    first = plot.panels[0].series
    several = first if len(first) > 1 else []
    return plot._asdict() | {
        "name": name,
        "tiles": tiles,
        "tables": [_table(names[title], group) for title, group in groups.items()],
        "legend": [
            LegendEntry(one.key, one.label, slot_class(one.slot)) for one in several
        ],
    }


def _elements(
    panel: Panel, plot: Plot, table: str, column: int, columns: int
) -> list[str]:
    """A panel, on both scales if there is a switch, in both sizes if it is wide."""
    data = {"data-table": table, "data-x": str(column), "data-y": str(columns + 1)}
    other = panel._replace(y=panel.y._replace(log=not panel.y.log))
    shown = {"only": panel}
    if plot.switch and drawable(other):
        shown = {"first": panel, "second": other}
    found = []
    for kind, one in shown.items():
        if plot.wide:
            wide = {"class": f"{kind} large", **data}
            size = WIDE if len(plot.panels) > 1 else WHOLE
            found.append(draw_svg(one, size, **wide))
        narrow = {"class": f"{kind} small" if plot.wide else kind, **data}
        found.append(draw_svg(one, NARROW, **narrow))
    return found


def _table(name: str, panels: Sequence[Panel]) -> DataTable:
    """The points of panels that differ in the horizontal axis alone."""
    first, y = panels[0], panels[0].y
    bands = any(np.any(one.high > one.low) for one in first.series)
    heads = ["", *(_short(panel.x) for panel in panels), y.title]
    heads += ["lowest", "highest"] if bands else []
    rows = []
    for one in first.series:
        columns = [(panel.x, _x_of(panel, one)) for panel in panels]
        columns += [(y, one.y)] + ([(y, one.low), (y, one.high)] if bands else [])
        for i in range(one.y.size):
            cells = [UNITS[axis.unit].value(float(x[i])) for axis, x in columns]
            rows.append((one.key, [one.label, *cells]))
    caption = f"{y.title} over {', '.join(heads[1 : len(panels) + 1])}"
    return DataTable(name, caption, heads, rows)


def _x_of(panel: Panel, series: Series) -> np.ndarray:
    """Where a series of another panel stands in this one; NaN if it does not."""
    same = [one.x for one in panel.series if one.key == series.key]
    return same[0] if same else np.full(series.y.size, np.nan)


def _short(axis: Axis) -> str:
    return {"bytes": "bytes", "seconds": "time"}.get(axis.unit, axis.title)


_ACROSS, _MARGIN = 3, 12  # rounds in a row, pixels around everything


def write_drawing(path: Path, graph: Drawing) -> None:
    """Write the rounds of a graph as an SVG file that needs no page.

    Args:
      path: of the file; its folder is made where it is missing.
      graph: to draw, some rounds in a row below a title.
    """
    rounds = [draw_round(graph, i) for i in range(len(graph.rounds))]
    box = re.search(r'viewBox="([^"]*)"', rounds[0])
    assert box
    size = [round(float(side)) for side in box[1].split()[2:]]
    across, head = min(len(rounds), _ACROSS), 52
    width = 2 * _MARGIN + max(across * size[0], round(CHARACTER * len(graph.note)))
    step = size[1] + 20 * any(one.caption for one in graph.rounds)
    left = (width - across * size[0]) // 2
    placed = [
        (
            left + i % across * size[0],
            head + i // across * step + step - size[1],
            graph.rounds[i].caption,
            element,
        )
        for i, element in enumerate(rounds)
    ]
    drawn = _TEMPLATES.get_template("picture.svg").render(
        title=cut(graph.title, int(width / 9)),
        note=graph.note,
        tiles=placed,
        size=size,
        width=width,
        height=head - (-len(rounds) // across) * step + _MARGIN,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, drawn)
