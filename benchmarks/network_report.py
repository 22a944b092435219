"""Table, CSV and plot of benchmarks/network.py."""

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp import cost
from jaxcomp.report import style
from jaxcomp.runs.units import seconds_text
from jaxcomp.wire import Collective

__all__ = [
    "Row",
    "line",
    "link_of",
    "needed",
    "read",
    "replaced",
    "show",
    "stops",
    "written",
]

SHARES = (0.5, 0.75, 0.9)  # of a step in which it computes
# Gloo starts the messages of an all-to-all to and from all others at once, and between
# two processes both directions share a connection: 13 MB between 4 hosts at 100 Mbit/s
# took 1.4 to 1.6 s instead of 0.82, and an all-gather of 40 MB of 2 hosts 12.5 s
# instead of 8.4.
PAIRWISE = 0.6


def link_of(mbit: float) -> cost.Link:
    """The model of a link that lets so many Mbit/s through."""
    return cost.Link(mbit * 1e6 / 8, pairwise=PAIRWISE)


class Row(NamedTuple):
    """One method at one rate. None if it is not known of a peer."""

    method: str
    workers: int
    elements: int
    rate: float  # Mbit/s that were asked for
    measured: float  # Mbit/s of payload that a socket got, in the slower direction
    repeats: int
    ms: float  # of an exchange, the median; each is that of the slowest worker
    fastest: float
    slowest: float
    local: float  # ms of an exchange over the same links without a limit
    predicted: float | None  # ms, by `jaxcomp.cost`
    counted: float  # bytes that left a host in an exchange, by the kernel, with headers
    leaving: float | None  # the same by the program and ring algorithms
    collectives: str
    compile_s: float | None


def read(file: Path) -> list[Row]:
    """The rows of a CSV file; none if it is not there."""
    if not file.exists():
        return []
    kinds: dict[str, Callable[[str], Any]] = {"workers": int, "elements": int}
    kinds |= {"repeats": int, "method": str, "collectives": str}
    with open(file, newline="") as source:
        found = list(csv.DictReader(source))
    return [Row(**{n: kinds.get(n, _number)(t) for n, t in r.items()}) for r in found]


def _number(text: str) -> float | None:
    return float(text) if text else None


def replaced(rows: Sequence[Row], new: Row) -> list[Row]:
    """The rows with a new one, in place of an older one of the same series."""
    kept = [row for row in rows if _key(row) != _key(new)]
    return [*kept, new]


def _key(row: Row) -> tuple[object, ...]:
    return row.method, row.workers, row.elements, row.rate


def written(found: Iterable[Collective]) -> str:
    """Collectives as the CSV has them: kind, bytes and how often.

    Example:
      >>> written([Collective("all-gather", 140416, 4, times=2)])
      'all-gather 140416 x2'
    """
    return "; ".join(f"{c.kind} {c.nbytes} x{c.times}" for c in found)


def collectives_of(row: Row) -> list[Collective]:
    """The collectives of a row, between all of its workers."""
    found = []
    for part in filter(None, row.collectives.split("; ")):
        kind, nbytes, times = part.split(" ")
        times = int(times.removeprefix("x"))
        found.append(Collective(kind, int(nbytes), row.workers, times))
    return found


def line(row: Row, dense: float | None = None) -> str:
    """One row as text; `dense` are the ms of `exact` at the same rate."""
    gain = "" if dense is None else f"{dense / row.ms:.1f}x"
    leaving = "" if row.leaving is None else f"{row.leaving / 1e6:.3f}"
    predicted = off = ""
    if row.predicted is not None:
        predicted = f"{row.predicted:,.0f}"
        off = f"{100 * (row.predicted / row.ms - 1):+.0f} %"
    return (
        f"{row.method:44} {row.rate:9,.0f} {row.measured:9,.0f} {row.ms:9,.0f}"
        f" {gain:>7} {row.local:9,.0f}"
        f" {row.counted / 1e6:10.3f} {leaving:>10} {predicted:>9} {off:>6}"
    )


_HEADER = (
    f"{'':44} {'Mbit/s':^19} {'':9} {'exact':>7} {'no limit':>9}"
    f" {'MB that leave a host':^21} {'predicted':>16}\n"
    f"{'method':44} {'asked':>9} {'measured':>9} {'ms':>9} {'/ this':>7} {'ms':>9}"
    f" {'counted':>10} {'program':>10} {'ms':>9} {'off':>6}"
)


def show(rows: Sequence[Row], file: Path, compute: float) -> None:
    """Print everything by size and rate, and draw the plot of the largest setting.

    Args:
      rows: that were measured.
      file: of the plot.
      compute: seconds of a step's forward and backward pass.
    """
    if not rows:
        raise SystemExit(f"nothing has been measured in {file.parent}")
    for setting in sorted({(row.elements, row.workers) for row in rows}):
        theirs = [row for row in rows if (row.elements, row.workers) == setting]
        dense = {row.rate: row.ms for row in theirs if row.method == "exact"}
        print(f"\n{setting[0]:,} float32 on each of {setting[1]} workers\n{_HEADER}")
        for row in sorted(theirs, key=lambda row: row.rate):
            print(line(row, dense.get(row.rate)))
        lasts = _lasts(theirs)
        exact = next((row for row in lasts if row.method == "exact"), None)
        heads = "".join(f"{100 * share:9.0f} %" for share in SHARES)
        print(f"\nMbit/s at which a step of {seconds_text(compute)} computes for")
        print(f"{'':44}{heads}   and `exact` is as fast")
        for row in lasts:
            if row.collectives:
                needs = [needed(row, share, compute) for share in SHARES]
                needs += [stops(row, exact)] if exact and row != exact else []
                texts = [f"{_mbit(value):>11}" for value in needs]
                print(f"{row.method:44}{''.join(texts)}")
    most = max((row.elements, row.workers) for row in rows)
    draw(file, [row for row in rows if (row.elements, row.workers) == most])


def _lasts(rows: Sequence[Row]) -> list[Row]:
    """The row of each method that was measured last."""
    return list({row.method: row for row in rows}.values())


def needed(row: Row, share: float, compute: float) -> float:
    """Mbit/s that a method needs, by the model, with its local time without a limit."""
    found, link = collectives_of(row), link_of(row.measured)
    local = row.local / 1e3
    return 8e-6 * cost.bandwidth_for(share, compute, found, link, local=local)


def stops(row: Row, dense: Row) -> float:
    """Mbit/s from which on `exact` is as fast, by the model and both local times."""
    ours, theirs = (
        cost.cost(collectives_of(r), link_of(row.measured), local=r.local / 1e3)
        for r in (row, dense)
    )
    return cost.break_even(ours, theirs, row.measured)


def _mbit(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}"


def draw(file: Path, rows: Sequence[Row]) -> None:
    """Time against bandwidth: measured points, and curves of the model."""
    with style.look():
        figure, axes = style.new_axes("Time of an exchange on slow links")
        figure.set_size_inches(9, 5)
        axes.set_position((0.08, 0.11, 0.55, 0.79))
        axes.set_xscale("log")
        axes.set_yscale("log")
        measured = [row.measured for row in rows]
        rates = np.geomspace(min(measured) / 1.3, max(measured) * 1.3, 100)
        labels = []
        for i, last in enumerate(_lasts(rows)):
            colour = _COLOURS[i % len(_COLOURS)]
            theirs = [row for row in rows if row.method == last.method]
            x, y = ([getattr(r, n) for r in theirs] for n in ("measured", "ms"))
            axes.plot(x, y, "o" if last.collectives else "x", color=colour)
            end = max(theirs, key=lambda row: row.rate).ms
            if last.collectives:
                found, local = collectives_of(last), last.local / 1e3
                links = map(link_of, rates)
                ms = [1e3 * cost.cost(found, k, local=local).seconds for k in links]
                axes.plot(rates, ms, color=colour, linewidth=1.2)
                end = ms[-1]
            labels.append(style.EndLabel(last.method, end, colour))
        axes.set_xlabel("Mbit/s that a plain socket gets")
        axes.set_ylabel("ms; points are measured, curves are the model")
        axes.set_xlim(rates[0], rates[-1])
        style.label_ends(axes, labels)
        figure.savefig(file, dpi=130)


_COLOURS = (
    style.INK,
    style.BLUE,
    style.ORANGE,
    style.GREEN,
    style.SKY,
    style.YELLOW,
    style.PINK,
    style.GREY,
)
