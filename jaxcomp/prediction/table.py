"""A prediction as text, as JSON, and as a plot of the step over the bandwidth."""

import math
from pathlib import Path
from typing import Any

from jaxcomp.cost import Cost
from jaxcomp.errors import UserError
from jaxcomp.prediction.predicting import SHARES, Prediction, Row
from jaxcomp.runs.units import bytes_text, rate_text, seconds_text, times_text

__all__ = ["as_json", "draw", "lines_of", "verdict"]

_HEADINGS = (
    *("method", "leaves", "fewer", "exchange", "local", "step", "speed-up"),
    "pays below",
)
_SUFFIXES = (".pdf", ".png", ".svg")
_DECADES = 2  # of bandwidth in the plot, on each side of the link's
_POINTS = 81


def lines_of(found: Prediction) -> list[str]:
    """The table of a prediction, a line for each method."""
    shares = [f"{100 * share:.0f} % needs" for share in SHARES]
    rows = [[*_HEADINGS, *shares], *(_cells(row, found) for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def verdict(found: Prediction) -> str:
    """What the table says, in a sentence or two."""
    exact, first = found.exact, found.rows[0]
    share = exact.exchange.seconds / exact.step
    took = f"`exact` spends {100 * share:.0f} % of its step on the exchange"
    if found.helps:
        gain = f"{first.method} makes the step {first.speedup:.3g} times as fast"
        return f"{took}; {gain}."
    below = [row for row in found.rows if 0 < row.break_even < math.inf]
    text = f"Nothing here helps: {took}, and no method takes less time than that."
    if below:
        last = max(below, key=lambda row: row.break_even)
        rate = rate_text(last.break_even)
        text += f" On links below {rate}, {last.method} would be the first that does."
    return text


def as_json(found: Prediction) -> dict[str, Any]:
    """The same figures for programs, in seconds and bytes; null stands for infinity."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def row_of(row: Row) -> dict[str, Any]:
        return {
            "method": row.method,
            "sent": row.exchange.nbytes,
            "times_fewer": number(found.fewer(row)),
            "rounds": row.exchange.rounds,
            "exchange": row.exchange.seconds,
            "local": row.exchange.local,
            "step": row.step,
            "speedup": row.speedup,
            "break_even": number(row.break_even),
            "needed": {
                str(share): number(rate)
                for share, rate in zip(SHARES, row.needed, strict=True)
            },
        }

    plain = {name: getattr(found, name) for name in Prediction._fields}
    plain["rows"] = [row_of(row) for row in found.rows]
    plain["link"] = found.link._asdict()
    return plain | {"helps": found.helps, "verdict": verdict(found)}


def draw(found: Prediction, file: Path) -> None:
    """Plot the step of each method over the bandwidth of the links.

    Args:
      found: the prediction.
      file: `.png`, `.svg` or `.pdf`.
    """
    from matplotlib.figure import Figure

    if file.suffix not in _SUFFIXES:
        raise UserError(f"a plot is one of {', '.join(_SUFFIXES)}, not {str(file)!r}")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    here = found.link.bandwidth
    exponents = (_DECADES * (2 * i / (_POINTS - 1) - 1) for i in range(_POINTS))
    rates = [here * 10**exponent for exponent in exponents]
    for row in found.rows:
        steps = [1e3 * (found.compute + _at(row, found, rate)) for rate in rates]
        style = "--" if row is found.exact else "-"
        axes.plot([8e-6 * r for r in rates], steps, style, label=row.method)
    axes.axvline(8e-6 * here, color="grey", linewidth=0.8)
    axes.axhline(1e3 * found.compute, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="bandwidth of a host, Mbit/s", ylabel="step, ms")
    axes.set_title(f"{found.elements:,} numbers, {found.workers} workers")
    axes.legend(fontsize="small")
    figure.savefig(file)


def _at(row: Row, found: Prediction, bandwidth: float) -> float:
    """Seconds of an exchange at another bandwidth."""
    seconds: Cost = row.exchange
    return seconds.transfer * found.link.bandwidth / bandwidth + (
        seconds.waiting + seconds.local
    )


def _cells(row: Row, found: Prediction) -> list[str]:
    return [
        row.method,
        bytes_text(row.exchange.nbytes),
        times_text(found.fewer(row)),
        seconds_text(row.exchange.seconds),
        seconds_text(row.exchange.local),
        seconds_text(row.step),
        times_text(row.speedup),
        _pays_below(row),
        *map(rate_text, row.needed),
    ]


def _pays_below(row: Row) -> str:
    if row.method == "exact":
        return ""
    if row.break_even == 0:
        return "never"
    return "always" if math.isinf(row.break_even) else rate_text(row.break_even)
