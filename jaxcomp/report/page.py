"""What pages are made of, and the templates beside this file that render them."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

__all__ = ["Card", "render"]

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
        dict from heading to text. `alarms` are shown at the top; with `refresh`, a
        number of seconds, the page loads itself again.

    Returns:
      The page.

    Example:
      >>> "<h1>a &lt; b</h1>" in render("page.html", title="a < b", subtitle="run 1")
      True
    """
    whole = {"alarms": [], "refresh": 0, "title": title, "subtitle": subtitle}
    return _TEMPLATES.get_template(template).render(whole | content)
