"""The tables of the documents that follow from docs/measured as a whole."""

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import network_report, scaling
from benchmarks.network_report import EXCHANGE, Row
from jaxcomp import make_compressor, wire
from jaxcomp.core.units import bytes_text, seconds_text
from jaxcomp.wire import cost

MEASURED = Path(__file__).resolve().parent.parent / "docs" / "measured"
_LINK = 125e6  # bytes a second: any that is not slower than what is found
_CHOICE = {  # of exchange.csv
    "exact": "`exact`",
    "power_sgd(rank=2)": "`power_sgd(rank=2)`",
    "gather(top_k(keep=0.01))": "`gather`, `top_k(keep=0.01)`",
    "gather(top_k(keep=0.001))": "`gather`, `top_k(keep=0.001)`",
    "dgc: gather(top_k(keep=0.001))": "the same with memory `dgc`",
    "majority_vote": "`majority_vote`",
    "two_phase(sign)": "`two_phase`, `sign`",
}
_BITS = (  # of error.csv
    "top_k(keep=0.001) | eden(bits=2, unbiased=False)",
    "top_k(keep=0.001)",
    "top_k(keep=0.01) | eden(bits=2, unbiased=False)",
    "top_k(keep=0.01)",
    "sign",
    "eden(bits=1, unbiased=False)",
    "svd(rank=2)",
    "eden(bits=2, unbiased=False)",
    "top_k(keep=0.1)",
    "eden(bits=4)",
    "block_scaled(bits=4)",
    "qsgd(levels=127, norm='max')",
    "cast(dtype='bfloat16')",
)
_LEVELS = ("1e-2", "3e-3", "1e-3", "1e-4", "3e-5")
Table = Iterable[Sequence[str]]


def rows_of(file: str) -> list[dict[str, str]]:
    with open(MEASURED / f"{file}.csv", newline="") as source:
        return list(csv.DictReader(source))


def _lines(make: Callable[[], Table]) -> list[str]:
    """A table of Markdown, its first row as the head."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in make())
    rows = (head, ["---"] * len(head), *body)
    return [f"| {' | '.join(row)} |" for row in rows]


# --- choosing.md ----------------------------------------------------------------------


def _break_even() -> Table:
    found = {row["method"]: row for row in rows_of("exchange")}
    yield "exchange", "computes, ms", "leaves a worker, MB", "faster than `exact` below"
    dense = _cost(found["exact"])
    for name, title in _CHOICE.items():
        own = _cost(found[name])
        limit = 8e-9 * cost.break_even(own, dense, _LINK) if own != dense else None
        faster = f"{limit:.1f} Gbit/s" if limit else ""
        yield title, f"{1e3 * own.local:.0f}", f"{own.nbytes / 1e6:.3g}", faster


def _cost(row: dict[str, str]) -> cost.Cost:
    """An exchange of exchange.csv, on links where bytes alone take time."""
    sent = [part.split("=") for part in row["by_kind"].split()]
    workers = int(row["workers"])
    left = sum(wire.KINDS[kind](workers) * int(nbytes) for kind, nbytes in sent)
    return cost.Cost(left / _LINK, 0.0, float(row["ms"]) / 1e3, left, 1)


def _bits() -> Table:
    gradient = [row for row in rows_of("error") if row["data"] == "gradient, step 390"]
    found = {row["method"]: row for row in gradient}
    yield "bits for each element", "method", "error", "biased, so with a memory"
    for method in _BITS:
        built = make_compressor(method)
        row = found.get(method) or found[built.name]
        bits, error = (_plainly(float(row[key])) for key in ("bits", "error"))
        yield bits, f"`{method}`", error, "no" if built.unbiased else "yes"


def _plainly(value: float) -> str:
    """Two digits, and no power of ten."""
    return f"{float(f'{value:.2g}'):.12f}".rstrip("0").rstrip(".")


# --- scaling.md -----------------------------------------------------------------------


def _network(workers: int, latency: float = 0.0, timed: str = EXCHANGE) -> list[Row]:
    """The rows of one table of network.csv."""
    rows = network_report.read(MEASURED / "network.csv")
    wanted = timed, workers, latency
    return [row for row in rows if (row.timed, row.workers, row.latency) == wanted]


def _with_no_limit() -> Table:
    """Training steps, and in the last column the same on links without a limit."""
    rows = _network(4, timed="resnet20, batch 32")
    head, *body = scaling.by_rate(rows)
    yield [*head, "no limit"]
    for line, row in zip(body, network_report.typical(rows), strict=True):
        yield [*line, seconds_text(row.unlimited / 1e3)]


def _rounds() -> Table:
    rows = rows_of("rounds")
    sizes = list(dict.fromkeys(row["hosts"] for row in rows))
    yield ["collective", *(f"{size} hosts" for size in sizes)]
    for name in dict.fromkeys(row["collective"] for row in rows):
        theirs = [row for row in rows if row["collective"] == name]
        yield [name, *(f"{row['measured']}, {row['model']}" for row in theirs)]


def _simulated() -> Table:
    rows = rows_of("simulated_workers")
    sizes = list(dict.fromkeys(row["workers"] for row in rows))
    yield ["exchange", *(f"{size} workers" for size in sizes)]
    for method in dict.fromkeys(row["method"] for row in rows):
        theirs = [row for row in rows if row["method"] == method]
        cells = (
            f"{100 * float(row['test_accuracy']):.1f} %; {int(row['nbytes']):,} B"
            for row in theirs
        )
        yield [f"`{method}`", *cells]


def _scaling(name: str) -> Table:
    kinds = scaling.Point.__annotations__
    points = [
        scaling.Point(**{key: kinds[key](text) for key, text in row.items()})
        for row in rows_of("scaling")
    ]
    return scaling.tables(points)[name]


# --- accelerators.md ------------------------------------------------------------------


def _targets() -> Table:
    yield (
        *("exchange, compressor, memory, scope", "launches"),
        *(
            "loops of unknown length",
            "temporary memory, in gradients",
            "message, bytes",
        ),
    )
    for row in rows_of("targets"):
        yield (
            *(row["method"], f"{int(row['launches']):,}"),
            *(row["open_loops"], f"{float(row['temporary']):.2f}"),
            f"{int(row['sent']):,}",
        )


# --- convex.md ------------------------------------------------------------------------


def _convex(partition: str) -> Table:
    """Bytes that leave a worker until a level, against the ring of `exact`."""
    rows = [row for row in rows_of("convex") if row["partition"] == partition]
    configs = list(dict.fromkeys(row["config"] for row in rows))
    yield ["level", *(f"`{config}`" for config in configs)]
    for level in _LEVELS:
        first = {
            row["config"]: row
            for row in reversed(rows)
            if float(row["suboptimality"]) <= float(level)
        }
        dense = float(first["centralised"]["bytes_left"])
        cells = []
        for config in configs:
            cells.append("not reached")
            if config in first:
                left, step = float(first[config]["bytes_left"]), first[config]["step"]
                cells[-1] = f"{bytes_text(left)}, step {step}, {dense / left:.3g}x"
        yield [level, *cells]


def _convex_ends() -> Table:
    """The last evaluation of each run: median and range over the seeds."""
    yield "config", "leave a worker in a step", "random", "sorted"
    last = {(row["config"], row["partition"]): row for row in rows_of("convex")}
    for config in dict.fromkeys(config for config, _ in last):
        ends = [last[config, partition] for partition in ("random", "sorted")]
        each = bytes_text(float(ends[0]["bytes_left"]) / int(ends[0]["step"]))
        cells = (
            f"{float(row['suboptimality']):.2g} "
            f"({float(row['lowest']):.2g} to {float(row['highest']):.2g})"
            for row in ends
        )
        yield f"`{config}`", each, *cells


def _convex_grid() -> Table:
    """The fewest steps to each level among the rates, and what leaves a worker."""
    yield "level", "examples", "D-PSGD", "top-k"
    rows = rows_of("convex_grid")
    levels = [key for key in rows[0] if key.startswith("steps_to_")]
    for partition in ("random", "sorted"):
        theirs = [row for row in rows if row["partition"] == partition]
        for level in levels:
            cells = []
            for config in dict.fromkeys(row["config"] for row in theirs):
                there = [r for r in theirs if r["config"] == config and r[level]]
                best = min(there, key=lambda row: float(row[level]), default=None)
                cells.append(_reached(best, level) if best else "not reached")
            yield level.removeprefix("steps_to_"), partition, *cells


def _reached(row: dict[str, str], level: str) -> str:
    steps = float(row[level])
    left = bytes_text(steps * int(row["step_bytes"]))
    return f"{left}, {steps:,.0f} steps"


_MADE: dict[str, Callable[[], Table]] = {
    "break_even": _break_even,
    "bits": _bits,
    "network_4": lambda: scaling.by_rate(_network(4)),
    "network_2": lambda: scaling.by_rate(_network(2)),
    "network_8": lambda: scaling.by_rate(_network(8)),
    "network_far": lambda: scaling.by_rate(_network(4, 10.0)),
    "network_steps": _with_no_limit,
    "rounds": _rounds,
    "simulated_workers": _simulated,
    "targets": _targets,
    "convex_ends": _convex_ends,
    "convex_grid": _convex_grid,
    **{f"convex_{name}": partial(_convex, name) for name in ("random", "sorted")},
    **{
        f"scaling_{kind}": partial(_scaling, kind)
        for kind in ("bytes", "time_office", "allowed_site")
    },
    "scaling_hosts_site": partial(_scaling, "hosts_site"),
}


def _printed(name: str) -> list[str]:
    """What a command printed once."""
    return ["```text", *(MEASURED / f"{name}.txt").read_text().splitlines(), "```"]


TABLES = {
    **{name: partial(_lines, make) for name, make in _MADE.items()},
    **{name: partial(_printed, name) for name in ("inspect", "predict")},
}
