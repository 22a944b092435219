"""Ranked bars of one run: where the time of a step goes, and which layers lose most."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.run_folder import Run
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.units import number_text, percent_text, seconds_text

__all__ = ["Bar", "Bars", "layers", "time_of_a_step"]

_PARTS = {
    "data": "preparing the batch",
    "forward_backward": "forward and backward",
    "compress": "compressing",
    "communicate": "communicating",
    "decode": "decoding",
    "update": "updating the model",
}
_TIMES = {
    "step": "computing, with the exchange",
    "data": "preparing the batch",
    "wait": "waiting for the figures",
}


class Bar(NamedTuple):
    """One row."""

    label: str
    value: float
    text: str  # the value
    cells: tuple[str, ...] = ()  # further columns


class Bars(NamedTuple):
    """Rows of bars with a common scale."""

    title: str
    caption: str
    heads: tuple[str, ...]  # of label, value and further cells
    rows: Sequence[Bar]
    most: float  # the value of a full bar
    at: float = float("nan")  # a value that a line marks


def time_of_a_step(run: Run) -> Bars | None:
    """The parts of a step, from breakdown.csv or else from the medians of steps.csv."""
    rows = run.others.get("breakdown", [])
    if rows:
        times = [
            (r.get("part", ""), _number(r, "ms", "breakdown") / 1000, r) for r in rows
        ]
        total = sum(seconds for _, seconds, _ in times) or 1.0
        bars = [
            Bar(
                _PARTS.get(part, part),
                seconds,
                seconds_text(seconds),
                (percent_text(seconds / total), row.get("how") or ""),
            )
            for part, seconds, row in times
        ]
        caption = f"Parts of a step, {seconds_text(total)} in all, measured one by one."
        heads = ("part", "time", "share", "how it was measured")
        return Bars("Time of a step", caption, heads, bars, _most(bars))
    medians = {name: _median(run, f"{name}_seconds") for name in _TIMES}
    medians = {name: x for name, x in medians.items() if np.isfinite(x)}
    if not medians:
        return None
    total = sum(medians.values()) or 1.0
    bars = [
        Bar(_TIMES[name], x, seconds_text(x), (percent_text(x / total),))
        for name, x in medians.items()
    ]
    caption = (
        "Medians over the logged steps: the first step, which compiles, is not in."
    )
    heads = ("part", "time", "share")
    return Bars("Time of a step", caption, heads, bars, _most(bars))


def layers(run: Run) -> Bars | None:
    """The layers of the last epoch in layers.csv, that with the largest error first."""
    rows = run.others.get("layers", [])
    if not rows:
        return None
    epochs = [_number(row, "epoch", "layers") for row in rows]
    last = max(epochs)
    found = []
    for row, epoch in zip(rows, epochs, strict=True):
        if epoch == last:
            names = ("elements", "gradient_norm", "error")
            elements, norm, error = (_number(row, name, "layers") for name in names)
            cells = (number_text(elements), number_text(norm))
            found.append(Bar(row.get("leaf", ""), error, number_text(error), cells))
    found.sort(key=lambda bar: -np.nan_to_num(bar.value, nan=-1.0))
    caption = (
        f"Which layers lose most, in epoch {number_text(last)}: the gradient error "
        "|sent − given|² / |given|² of each. The line marks 1, sending nothing."
    )
    heads = ("layer", "gradient error", "elements", "gradient norm")
    return Bars("Layers", caption, heads, found, max(1.0, _most(found)), at=1.0)


def _median(run: Run, column: str) -> float:
    seen = run.steps.get(column, np.array([]))
    seen = seen[np.isfinite(seen)]
    return float(np.median(seen)) if seen.size else float("nan")


def _most(bars: Sequence[Bar]) -> float:
    values = [bar.value for bar in bars if np.isfinite(bar.value)]
    return max(values, default=0.0) or 1.0


def _number(row: dict[str, str], column: str, table: str) -> float:
    try:
        return float(row[column] or "nan")
    except (KeyError, ValueError):
        raise RunError(
            f"{table}.csv holds {row.get(column)!r} as {column}, expected a number"
        ) from None
