"""What does an exchange cost with 2 to 10,000 workers, as `jaxcomp.wire.cost` says?

The messages are those of the traced exchange of ResNet-50's gradient, as if each worker
had a device, so none is needed and nothing runs. The tables are those of
docs/scaling.md.

    python -m benchmarks.scaling --out docs/measured
    python -m benchmarks.scaling --measured build/network.csv --workers 2 4 8
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import network_report, trees
from benchmarks.common import write_csv
from benchmarks.network_report import Row
from jaxcomp import make_exchange, wire
from jaxcomp.core.units import bytes_text, seconds_text
from jaxcomp.wire import Collective, cost
from jaxcomp.wire.cost import Link

WORKERS = (2, 4, 8, 16, 64, 256, 1000, 10_000)
PER_HOST = 8  # of the hierarchical exchange


class Method(NamedTuple):
    """An exchange and how it is called in the tables."""

    title: str
    exchange: str
    compressor: str = "none"
    memory: str = "error_feedback"
    scope: str = "whole_tree"
    per_host: int = 1


_LIGHT = "top_k(keep=0.001)"
_FEW_BITS = "qsgd(levels=7, norm='max')"
METHODS = (
    Method("exact", "exact", memory="none"),
    Method("power_sgd(rank=2)", "power_sgd(rank=2)", scope="per_leaf"),
    Method(f"gather({_LIGHT})", "gather", _LIGHT),
    Method(f"gather({_LIGHT} | qsgd(127))", "gather", f"{_LIGHT} | qsgd(127)"),
    Method("gather(sign)", "gather", "sign"),
    Method("two_phase(sign)", "two_phase", "sign"),
    Method(f"two_phase({_FEW_BITS})", "two_phase", _FEW_BITS, "none"),
    Method(f"sparse_reduce({_LIGHT})", "sparse_reduce", _LIGHT),
)
_INNER = Method("hierarchical", f"hierarchical(per_host={PER_HOST})", _LIGHT)
HIERARCHICAL = (
    Method("exact", "exact", memory="none", per_host=PER_HOST),
    Method(f"gather({_LIGHT})", "gather", _LIGHT, per_host=PER_HOST),
    _INNER._replace(title=f"hierarchical: gather({_LIGHT})", per_host=PER_HOST),
)
LINKS = {  # the columns of Point
    "site": Link(100e6 / 8, 20e-3),
    "office": Link(1e9 / 8, 0.2e-3),
    "centre": Link(25e9 / 8, 0.02e-3),
}
INSIDE = Link(100e9, 5e-6)  # between the devices of a host


class Point(NamedTuple):
    """A row of scaling.csv: what an exchange costs with so many workers."""

    exchange: str
    workers: int
    per_host: int
    left: int  # bytes that leave a worker
    site: float  # seconds on links of 100 Mbit/s with 20 ms, such as between sites
    office: float  # of 1 Gbit/s with 0.2 ms
    centre: float  # of 25 Gbit/s with 0.02 ms, such as inside a data centre


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS)
    parser.add_argument("--scale", type=float, default=1.0, help="of the channels")
    parser.add_argument("--measured", type=Path, metavar="CSV", help="of network.py")
    parser.add_argument("--out", type=Path, help="folder for scaling.csv")
    args = parser.parse_args(arguments)
    if args.measured:
        _print_measured(args.measured)
    found = points(args.workers, args.scale)
    for title, table in tables(found).items():
        _print_table(title, table)
    if args.out:
        write_csv(args.out / "scaling.csv", found)


def points(sizes: Sequence[int], scale: float = 1.0) -> list[Point]:
    """Each exchange with each number of workers, alone on a host and eight on one."""
    found = []
    for method in (*METHODS, *HIERARCHICAL):
        several = method.per_host
        for size in sizes:
            if several == 1 or (size % several == 0 and size > several):
                messages = traced(method, size, scale)
                given = {"per_host": several, "inside": INSIDE} if several > 1 else {}
                times = [cost.cost(messages, link, **given) for link in LINKS.values()]
                seconds = [each.seconds for each in times]
                left = round(wire.link_bytes(messages))
                found.append(Point(method.title, size, several, left, *seconds))
    return found


def tables(found: Sequence[Point]) -> dict[str, list[list[str]]]:
    """The tables of docs/scaling.md, by their titles."""
    alone = [point for point in found if point.per_host == 1]
    shared = [point for point in found if point.per_host > 1]
    dense = {point.workers: point for point in alone if point.exchange == "exact"}
    others = [point for point in alone if point.exchange != "exact"]
    made = {"bytes": _by_size(alone, lambda point: bytes_text(point.left))}

    def allowed(point: Point, link: str) -> str:
        """How much local time more than `exact` it may take to be as fast."""
        gained = getattr(dense[point.workers], link) - getattr(point, link)
        return seconds_text(gained) if gained > 0 else "never"

    def time(point: Point, link: str) -> str:
        return seconds_text(getattr(point, link))

    for link in LINKS:
        timed = functools.partial(time, link=link)
        made[f"time_{link}"] = _by_size(alone, timed)
        made[f"allowed_{link}"] = _by_size(
            others, functools.partial(allowed, link=link)
        )
        made[f"hosts_{link}"] = _by_size(shared, timed)
    return made


def _by_size(found: Sequence[Point], cell: Callable[[Point], str]) -> list[list[str]]:
    sizes = sorted({point.workers for point in found})
    rows = {}
    for point in found:
        rows.setdefault(point.exchange, [_code(point.exchange)]).append(cell(point))
    return [["exchange", *(f"{size:,}" for size in sizes)], *rows.values()]


def traced(method: Method, workers: int, scale: float = 1.0) -> list[Collective]:
    """The collectives of one exchange between so many workers."""
    shapes = trees.resnet50(scale)
    specs = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    exchange = make_exchange(
        method.exchange, method.compressor, method.memory, method.scope
    )

    def step(state: Any, tree: Any, seed: Any) -> Any:
        done = exchange.average(tree, state, jax.random.key(seed))
        return done.mean, done.state

    state = jax.eval_shape(lambda: exchange.init(specs))
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    found = wire.traced_collectives(
        step, state, specs, seed, axis="workers", workers=workers
    )
    dense = method.exchange.startswith(("exact", "hierarchical"))
    return _combined(found) if dense else found


def _combined(found: list[Collective]) -> list[Collective]:
    """All-reduces of the tensors of a tree as the one that XLA makes of them."""
    parts = [c for c in found if c.kind == "all-reduce"]
    whole = parts[0]._replace(nbytes=sum(c.nbytes for c in parts))
    return [whole, *(c for c in found if c.kind != "all-reduce")]


def _print_measured(file: Path) -> None:
    """The points of network.py, tables for each setting."""
    rows = network_report.read(file)
    if not rows:
        raise SystemExit(f"nothing has been measured in {file}")
    for setting, theirs in network_report.settings(rows).items():
        _print_table(f"Measured: {network_report.title(theirs)}", by_rate(theirs))
        if setting.timed == network_report.EXCHANGE:
            _print_table("Mbit/s needed by steps of 1 s", _needs(theirs))


def by_rate(rows: Sequence[Row]) -> list[list[str]]:
    """Time, how often it fits into that of `exact`, and how far the model is off."""
    rates = sorted({row.rate for row in rows})
    dense = {row.rate: row.ms for row in rows if row.method == "exact"}
    table = [["exchange", *(f"{rate:,.0f} Mbit/s" for rate in rates)]]
    for method in dict.fromkeys(row.method for row in rows):
        found = {row.rate: row for row in rows if row.method == method}
        cells = [_point(found.get(rate), dense.get(rate)) for rate in rates]
        table.append([_code(method), *cells])
    return table


def _needs(rows: Sequence[Row]) -> list[list[str]]:
    """The bandwidth at which a step of a second computes for shares of its time."""
    shares = [f"{100 * share:.0f} %" for share in network_report.SHARES]
    table = [["exchange", *shares, "`exact` is as fast"]]
    methods = network_report.typical(rows)
    exact = next((row for row in methods if row.method == "exact"), None)
    for row in methods:
        each = [network_report.needed(row, s, 1.0) for s in network_report.SHARES]
        if exact is not None and row.method != "exact":
            each.append(network_report.stops(row, exact))
        table.append([_code(row.method), *map(network_report.mbit_text, each)])
    return [row + [""] * (len(table[0]) - len(row)) for row in table]


def _code(text: str) -> str:
    return f"`{text}`"


def _point(row: Row | None, dense: float | None) -> str:
    if row is None:
        return ""
    parts = [seconds_text(row.ms / 1e3)]
    if dense is not None and row.method != "exact":
        parts.append(f"{dense / row.ms:.3g}x")
    if row.predicted is not None:
        parts.append(f"{100 * (row.predicted / row.ms - 1):+.0f} %")
    return ", ".join(parts)


def _print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n")
    head, *body = rows
    for row in (head, ["---"] * len(head), *body):
        cells = (cell.replace("|", "\\|") for cell in row)
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
