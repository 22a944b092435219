"""Rows, CSV and tables of benchmarks/network.py."""

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.core.units import seconds_text
from jaxcomp.wire import Collective, cost

SHARES = (0.5, 0.75, 0.9)  # of a step in which it computes
EXCHANGE = "exchange"  # of given gradients; else a row is of a model's training step


def link_of(mbit: float, latency: float = 0.0) -> cost.Link:
    """The model of a link of Gloo that lets so many Mbit/s through, after seconds."""
    return cost.Link(mbit * 1e6 / 8, latency, duplex=False, trips=2, together=False)


class Row(NamedTuple):
    """One method at one rate. None if it is not known of a peer."""

    method: str
    workers: int
    elements: int
    rate: float  # Mbit/s that were asked for
    measured: float  # Mbit/s of payload that a socket got, in the slower direction
    free: float  # the same without a limit, of all hosts in a ring at the same time
    repeats: int
    ms: float  # of an exchange, the median; each is the mean of the workers
    fastest: float
    slowest: float
    unlimited: float  # ms of an exchange over the same links without a limit
    predicted: float | None  # ms, by `jaxcomp.wire.cost`
    counted: float  # bytes that left a host in an exchange, by the kernel, with headers
    leaving: float | None  # the same by the program and ring algorithms
    collectives: str
    timed: str = EXCHANGE
    latency: float = 0.0  # ms one way that a relay in user space was to add
    latency_measured: float | None = None  # ms one way of a byte; None of older rows

    @property
    def local(self) -> float:
        """Seconds that are no message: those without a limit, less those of copies."""
        copied = cost.cost(collectives_of(self), link_of(self.free)).transfer
        return max(0.0, self.unlimited / 1e3 - copied)

    @property
    def link(self) -> cost.Link:
        """What plain sockets found; the kernel's own latency is in the local time."""
        delay = self.latency_measured if self.latency else None
        return link_of(self.measured, (delay or 0.0) / 1e3)


class Setting(NamedTuple):
    """What is the same for all rows of a table or a figure."""

    timed: str
    elements: int
    workers: int
    latency: float


def setting(row: Row) -> Setting:
    return Setting(row.timed, row.elements, row.workers, row.latency)


def order(found: Setting) -> tuple[object, ...]:
    """Exchanges before steps, large gradients before small ones."""
    timed, elements, workers, latency = found
    return timed != EXCHANGE, timed, -elements, workers, latency


def settings(rows: Sequence[Row]) -> dict[Setting, list[Row]]:
    """The rows of each setting, in the order of tables."""
    result: dict[Setting, list[Row]] = {}
    for row in rows:
        result.setdefault(setting(row), []).append(row)
    return {each: result[each] for each in sorted(result, key=order)}


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows of figures: exchanges of the largest gradient, of one number of workers.

    It is the one with most rows. Without latency, if there are such rows. None if no
    exchange was measured.
    """
    exchanges = [row for row in rows if row.timed == EXCHANGE]
    found = settings(exchanges)

    def worth(setting: Setting) -> tuple[float, int, int]:
        return -setting.latency, setting.elements, len(found[setting])

    best = max(found, key=worth, default=None)
    return found[best] if best else []


def read(file: Path) -> list[Row]:
    """The rows of a CSV file; none if it is not there."""
    if not file.exists():
        return []
    kinds: dict[str, Callable[[str], Any]] = {"workers": int, "elements": int}
    kinds |= {"repeats": int, "method": str, "collectives": str, "timed": str}
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
    return row.method, row.rate, setting(row)


def written(found: Iterable[Collective]) -> str:
    """Collectives as the CSV has them: kind, bytes, how often, and of how many tensors.

    Example:
      >>> written([Collective("all-gather", 140416, 4, times=2)])
      'all-gather 140416 x2'
      >>> written([Collective("all-reduce", 80, 4, tensors=3)])
      'all-reduce 80 x1 of 3'
    """
    texts = []
    for c in found:
        of = f" of {c.tensors}" if c.tensors > 1 else ""
        texts.append(f"{c.kind} {c.nbytes} x{c.times}{of}")
    return "; ".join(texts)


def collectives_of(row: Row) -> list[Collective]:
    """The collectives of a row, between all of its workers.

    Of a peer, whose program is not read, they are one all-reduce of what was counted.
    """
    if not row.collectives:
        handed = row.counted * row.workers / (2 * (row.workers - 1))
        return [Collective("all-reduce", round(handed), row.workers)]
    found = []
    for part in row.collectives.split("; "):
        whole, _, tensors = part.partition(" of ")
        kind, nbytes, times = whole.split(" ")
        count, parts = int(times.removeprefix("x")), int(tensors or 1)
        of_all = Collective(kind, int(nbytes), row.workers, count, tensors=parts)
        found.append(of_all)
    return found


def predicted(row: Row, mbit: float | None = None) -> float:
    """Milliseconds of its exchange by the model, at its own or another rate."""
    link = row.link
    if mbit is not None:
        link = link_of(mbit, link.latency)
    return 1e3 * cost.cost(collectives_of(row), link, local=row.local).seconds


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
        f" {gain:>7} {row.unlimited:9,.0f}"
        f" {row.counted / 1e6:10.3f} {leaving:>10} {predicted:>9} {off:>6}"
    )


_HEADER = (
    f"{'':44} {'Mbit/s':^19} {'':9} {'exact':>7} {'no limit':>9}"
    f" {'MB that leave a host':^21} {'predicted':>16}\n"
    f"{'method':44} {'asked':>9} {'measured':>9} {'ms':>9} {'/ this':>7} {'ms':>9}"
    f" {'counted':>10} {'program':>10} {'ms':>9} {'off':>6}"
)


def show(rows: Sequence[Row], compute: float) -> None:
    """Print everything by size and rate.

    Args:
      rows: that were measured.
      compute: seconds of a step's forward and backward pass.
    """
    for each, theirs in settings(rows).items():
        dense = {row.rate: row.ms for row in theirs if row.method == "exact"}
        print(f"\n{title(theirs)}\n{_HEADER}")
        for row in sorted(theirs, key=lambda row: row.rate):
            print(line(row, dense.get(row.rate)))
        if each.timed != EXCHANGE:
            continue  # its own computing is in the time of a step
        methods = typical(theirs)
        exact = next((row for row in methods if row.method == "exact"), None)
        heads = "".join(f"{100 * share:9.0f} %" for share in SHARES)
        print(f"\nMbit/s at which a step of {seconds_text(compute)} computes for")
        print(f"{'':44}{heads}   and `exact` is as fast")
        for row in methods:
            needs = [needed(row, share, compute) for share in SHARES]
            needs += [stops(row, exact)] if exact and row != exact else []
            texts = [f"{mbit_text(value):>11}" for value in needs]
            print(f"{row.method:44}{''.join(texts)}")


def title(rows: Sequence[Row]) -> str:
    """What the rows of one setting are, in a line."""
    timed, elements, workers, latency = setting(rows[0])
    text = f"{elements:,} float32 on each of {workers} workers"
    if timed != EXCHANGE:
        text = f"Training steps of {timed}: {text}"
    found = [row.latency_measured for row in rows if row.latency_measured is not None]
    if latency and found:
        text += f", {latency:g} ms one way: latency by a relay in user space"
        text += f", measured {min(found):.3g} to {max(found):.3g} ms"
    return text


def typical(rows: Sequence[Row]) -> list[Row]:
    """A row of each method, without a limit the median of those of all its rates."""
    found = []
    for method in dict.fromkeys(row.method for row in rows):
        theirs = [row for row in rows if row.method == method]
        middle = statistics.median(row.unlimited for row in theirs)
        fastest = max(theirs, key=lambda row: row.rate)  # of a peer: the fewest headers
        found.append(fastest._replace(unlimited=middle))
    return found


def needed(row: Row, share: float, compute: float) -> float:
    """Mbit/s that a method needs, by the model, with its local time without a limit."""
    found, link = collectives_of(row), row.link
    return 8e-6 * cost.bandwidth_for(share, compute, found, link, local=row.local)


def stops(row: Row, dense: Row) -> float:
    """Mbit/s from which on `exact` is as fast, by the model and both local times."""
    ours, theirs = (
        cost.cost(collectives_of(r), row.link, local=r.local) for r in (row, dense)
    )
    return cost.break_even(ours, theirs, row.measured)


def mbit_text(value: float) -> str:
    """A bandwidth as text; where more than a Tbit/s is needed, none is enough."""
    return "never" if value > 1e6 else f"{value:,.0f}"
