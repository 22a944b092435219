"""Runs that differ only in the seed are one group, named by what tells groups apart.

A run of a sweep is called as the sweep calls it, wherever it is compared.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxcomp.report.run_folder import Run
from jaxcomp.report.settings import settings_of
from jaxcomp.runs.folder import CHANGEABLE

__all__ = ["Group", "different_keys", "group_runs"]

# What may differ between the runs of a group.
_REPEATED = {"seed", *CHANGEABLE}
# Keys whose values say what they are without their names, in the order of a label.
_SPEAKING = (
    *("mixer", "topology", "compressor", "memory", "exchange", "scope"),
    *("optimizer", "task", "model", "dataset", "problem", "schedule"),
)
_NOTHING = ("", "none", "null", "–")


class Group(NamedTuple):
    """Runs of one config with several seeds."""

    key: str  # the same on every page of the same runs
    label: str
    runs: Sequence[Run]
    short: str = ""  # the label where there is little room; "" if none is unique


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that differ only in the seed, in the order of their coming.

    Example:
      >>> sign, exact = {"compressor": "sign"}, {"compressor": "none"}
      >>> runs = [Run("a", sign | {"seed": s}, {}, {}) for s in (0, 1)]
      >>> [(g.label, len(g.runs)) for g in group_runs([*runs, Run("b", exact, {}, {})])]
      [('sign', 2), ('compressor none', 1)]
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_identity(run), []).append(run)
    members = list(found.values())
    keys = different_keys(members)
    labels = _unique([_label(group[0], keys) for group in members], members)
    shorts = _shorts(labels)
    return [
        Group(f"g{i}", *parts)
        for i, parts in enumerate(zip(labels, members, shorts, strict=True))
    ]


def different_keys(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The dotted keys of configs in which groups differ, without the seed.

    A key counts between those who make use of it.

    Example:
      >>> configs = {"seed": 0, "workers": 4}, {"seed": 1, "workers": 8}
      >>> different_keys([[Run("a", config, {}, {})] for config in configs])
      ['workers']
    """
    found = [settings_of(group[0]) for group in groups if group[0].config]
    keys = dict.fromkeys(key for settings in found for key in settings.config)

    def differs(key: str) -> bool:
        return len({s.config.get(key) for s in found if key not in s.unused}) > 1

    return [k for k in keys if k.partition(".")[0] not in _REPEATED and differs(k)]


def _identity(run: Run) -> str:
    config, unused = settings_of(run)
    left_out = {*_REPEATED, *unused}
    kept = {k: v for k, v in config.items() if k.partition(".")[0] not in left_out}
    # Without a config nothing says what else is the same run.
    return json.dumps(kept, sort_keys=True) if kept else f"folder {run.name}"


def _label(run: Run, keys: Sequence[str]) -> str:
    settings, sweep = settings_of(run), run.environment.get("sweep") or {}
    parts = [str(label) for label in sweep.get("labels", {}).values()]
    told = sweep.get("keys", ())  # by these labels
    keys = [key for key in keys if key.partition(".")[0] not in told]
    # An exchange with a way of its own is what a compressor is to others.
    first = ["exchange"] if settings.of("compressor") == "none" else []
    speaking = [key for key in dict.fromkeys((*first, *_SPEAKING)) if key in keys]
    values = [settings.of(key) for key in speaking]
    parts += [value for value in values if value not in _NOTHING]
    others = [key for key in keys if key not in _SPEAKING]
    parts += [f"{key}={settings.of(key)}" for key in others if settings.of(key)]
    if not parts and speaking:
        return f"{speaking[0]} none"
    return ", ".join(parts)


def _shorts(labels: Sequence[str]) -> list[str]:
    """Labels without arguments, and if that tells them apart, only their first names.

    Example:
      >>> _shorts(["top_k(keep=0.1), gather", "sign, gather"])
      ['top_k', 'sign']
      >>> _shorts(["top_k(keep=0.1), workers=2", "top_k(keep=0.1), workers=4"])
      ['top_k, workers=2', 'top_k, workers=4']
    """
    bare = list(labels)
    while any("(" in text for text in bare):  # from the innermost brackets on
        inner = [re.sub(r"\([^()]*\)", "", text) for text in bare]
        if inner == bare:
            break
        bare = inner
    first = [re.split(r"[,|]", text)[0].strip() for text in bare]
    for names in (first, bare):
        if len(set(names)) == len(names):
            return names
    return [""] * len(labels)


def _unique(labels: list[str], groups: Sequence[Sequence[Run]]) -> list[str]:
    """The labels, or the names of folders where labels do not tell groups apart."""
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    names = [group[0].name for group in groups]
    if len(set(names)) == len(names):
        return names
    return [f"{number} {name}" for number, name in enumerate(names, 1)]
