"""Where the figures of a run come from: its config, environment and command."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxcomp.report.run_folder import Run
from jaxcomp.runs.units import MISSING

__all__ = ["Provenance", "flatten", "provenance", "started"]

_ELSEWHERE = ("command", "failed", "graph")  # facts that a page shows in another form


class Provenance(NamedTuple):
    """Where the figures of a run come from, as names and texts."""

    config: dict[str, str]
    environment: dict[str, str]
    command: str  # empty if it was not recorded


def provenance(run: Run) -> Provenance:
    """The config, the environment and the command of a run.

    Example:
      >>> provenance(Run("a", {}, {"command": ["train.py", "--note=a b"]}, {})).command
      "train.py '--note=a b'"
    """
    facts = {k: fact for k, fact in run.environment.items() if k not in _ELSEWHERE}
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
