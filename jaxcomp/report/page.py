"""What pages are made of, and the templates beside this file that render them."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from jaxcomp.report.run_folder import Run
from jaxcomp.runs.units import MISSING

__all__ = [
    "Card",
    "Drawing",
    "Provenance",
    "flatten",
    "provenance",
    "render",
    "started",
]

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


class Drawing(NamedTuple):
    """A plot on the page, and what it shows."""

    svg: str  # an SVG element
    caption: str


class Provenance(NamedTuple):
    """Where the figures of a run come from, as names and texts."""

    config: dict[str, str]
    environment: dict[str, str]
    command: str  # empty if it was not recorded


def render(template: str, **content: Any) -> str:
    """Render a page; all text in it is escaped.

    Args:
      template: name of a file in `templates`.
      **content: values of the template's variables. A table is a list of rows, each a
        dict from heading to text.

    Returns:
      The page.

    Example:
      >>> "<h1>a &lt; b</h1>" in render("page.html", title="a < b", subtitle="run 1")
      True
    """
    return _TEMPLATES.get_template(template).render(content)


def provenance(run: Run) -> Provenance:
    """The config, the environment and the command of a run.

    Example:
      >>> provenance(Run("a", {}, {"command": ["train.py", "--note=a b"]}, {})).command
      "train.py '--note=a b'"
    """
    facts = {name: fact for name, fact in run.environment.items() if name != "command"}
    words = run.environment.get("command")
    command = shlex.join(map(str, words)) if isinstance(words, list) else ""
    return Provenance(flatten(run.config), flatten(facts), command)


def started(run: Run) -> str:
    """The name of a run, and when it started if that was recorded.

    Example:
      >>> started(Run("first", {}, {"started": "2025-11-18"}, {}))
      'run first, started 2025-11-18'
    """
    time = run.environment.get("started")
    return f"run {run.name}, started {time}" if time else f"run {run.name}"


def flatten(content: Mapping[str, Any]) -> dict[str, str]:
    """A nested dict as one level of dotted names and texts.

    Args:
      content: as read from a JSON file.

    Example:
      >>> flatten({"seed": 0, "optimizer": {"name": "sgd"}, "devices": ["a", "b"]})
      {'seed': '0', 'optimizer.name': 'sgd', 'devices': 'a, b'}
    """
    flat = {}
    for name, value in content.items():
        if isinstance(value, dict) and value:
            inner = flatten(value)
            flat |= {f"{name}.{key}": text for key, text in inner.items()}
        else:
            flat[name] = _value_text(value)
    return flat


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return MISSING
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
