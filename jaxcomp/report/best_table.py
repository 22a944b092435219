"""The table of the best figures of each group, with what tells the groups apart."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.report.best import Best, best_of, seeds, unfinished, winner
from jaxcomp.report.groups import Group, different_keys
from jaxcomp.report.measure import Judged
from jaxcomp.report.run_folder import holds_convex
from jaxcomp.report.settings import settings_of
from jaxcomp.report.svg_marks import slot_class
from jaxcomp.report.units import rounded
from jaxcomp.report.whose import leaver, sender
from jaxcomp.runs.units import (
    MISSING,
    bytes_text,
    seconds_text,
    times_fewer,
    times_text,
)

__all__ = ["Cell", "best_table"]


class Cell(NamedTuple):
    """A cell of a table that can be sorted."""

    text: str
    value: float | None = None  # None: sorted by the text


class _Column(NamedTuple):
    head: str
    cell: Callable[[Group, Best], Cell]
    is_shown: bool = True


def best_table(groups: Sequence[Group], measure: Judged) -> dict[str, Any]:
    """The heads and rows of the table, as the template of a comparison takes them."""
    found = [best_of(group, measure) for group in groups]
    best, keys = (
        winner(groups, found, measure),
        different_keys([g.runs for g in groups]),
    )
    columns = [c for c in _figures(groups, found, measure) if c.is_shown]
    words = [_Column(key, _config_cell(key)) for key in keys]
    rows = [
        {
            "label": group.short or group.label,
            "slot": slot_class(slot),
            "best": slot == best,
            "cells": [column.cell(group, one) for column in (*columns, *words)],
        }
        for slot, (group, one) in enumerate(zip(groups, found, strict=True))
    ]
    heads = ["runs", *(column.head for column in (*columns, *words))]
    return {"heads": heads, "figures": 1 + len(columns), "rows": rows}


def _figures(
    groups: Sequence[Group], found: Sequence[Best], measure: Judged
) -> list[_Column]:
    several = max(map(seeds, groups)) > 1
    runs = [run for group in groups for run in group.runs]
    # Of a convex run the end is judged, and no time is measured.
    convex = holds_convex(groups[0].runs[0])
    open_ends = [unfinished(group) for group in groups]
    timed = bool(np.isfinite([one.seconds for one in found]).any())
    name = f"final {measure.title}" if convex else f"best {measure.title}"

    def cell(
        text: Callable[[float], str], of: Callable[[Best], float]
    ) -> Callable[[Group, Best], Cell]:
        return lambda _, one: Cell(text(of(one)), of(one))

    def spread(group: Group, one: Best) -> Cell:
        if one.low == one.high:
            return Cell(MISSING, 0.0)
        text = f"{measure.text(one.low)} to {measure.text(one.high)}"
        return Cell(text, one.high - one.low)

    def count(group: Group, one: Best) -> Cell:
        return Cell(str(seeds(group)), seeds(group))

    return [
        _Column(name, cell(measure.text, lambda x: x.value)),
        _Column("range", spread, several),
        _Column("in epoch", cell(rounded, lambda x: x.epoch), not convex),
        _Column("at the end", cell(measure.text, lambda x: x.last), not convex),
        _Column("ended", lambda g, _: Cell(unfinished(g) or "yes"), any(open_ends)),
        _Column(f"left a {leaver(runs)}", cell(bytes_text, lambda x: x.left)),
        _Column("ratio", cell(times_text, lambda x: times_fewer(x.exact, x.left))),
        _Column(f"messages of a {sender(runs)}", cell(bytes_text, lambda x: x.message)),
        _Column("time", cell(seconds_text, lambda x: x.seconds), timed),
        _Column("seeds", count, several),
    ]


def _config_cell(key: str) -> Callable[[Group, Best], Cell]:
    return lambda group, _: Cell(settings_of(group.runs[0]).of(key) or MISSING)
