"""What pages are made of, and the templates beside this file that write them."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from jaxcomp.report.tables import flatten

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)


class Card(NamedTuple):
    """One headline number."""

    name: str
    value: str
    note: str


class Plot(NamedTuple):
    """A plot and what it shows."""

    svg: str  # an SVG element
    caption: str


class Numbers(NamedTuple):
    """A table with one column per quantity."""

    heads: Sequence[str]
    rows: Iterable[Sequence[str]]


class Provenance(NamedTuple):
    """What a run was given, as names and texts."""

    config: dict[str, str]
    environment: dict[str, str]
    command: str  # empty if it was not recorded


def render(template: str, **content: Any) -> str:
    """Writes a page; all text in it is escaped.

    Args:
        template: A file in `templates`.
        content: What it names.

    Returns:
        The page.

    >>> "<h1>a &lt; b</h1>" in render("page.html", title="a < b", subtitle="run 1")
    True
    """
    return _TEMPLATES.get_template(template).render(content)


def provenance(config: dict[str, Any], environment: dict[str, Any]) -> Provenance:
    """What `config.json` and `environment.json` say.

    >>> provenance({}, {"command": ["train.py", "--note=a b"]}).command
    "train.py '--note=a b'"
    """
    facts = {name: fact for name, fact in environment.items() if name != "command"}
    words = environment.get("command")
    command = shlex.join(map(str, words)) if isinstance(words, list) else ""
    return Provenance(flatten(config), flatten(facts), command)


def started(environment: dict[str, Any]) -> str:
    """Says when a run started, to follow its name; empty if it was not recorded.

    >>> started({"started": "2025-11-18"}), started({})
    (', started 2025-11-18', '')
    """
    time = environment.get("started")
    return f", started {time}" if time else ""
