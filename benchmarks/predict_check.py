"""Is what `jaxcomp predict` says what real processes on slow links take?

It reads what benchmarks/network.py has measured, and predicts the same exchanges: local
time is that of as many processes of this machine over its loopback, the rest is
`jaxcomp.wire.cost`. The step computes for as long as `--compute` says.

    python -m benchmarks.predict_check --measured docs/measured/network.csv
    python -m benchmarks.predict_check --measured build/network.csv --methods exact sign

For each rate it prints both steps, and whether they order the methods alike.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from benchmarks import network_report
from benchmarks.common import PAGES, with_pages
from benchmarks.loopback import loopback_seconds
from benchmarks.network_report import EXCHANGE
from jaxcomp.wire.predict import predict, spec_of_tree

# What network.py calls a method -> its line.
METHODS = {
    "exact": "exact",
    "power_sgd(rank=2)": "power_sgd(rank=2)",
    "top_k(keep=0.001), whole_tree": "top_k(keep=0.001)",
    "top_k(keep=0.001), per_leaf": "per_leaf: top_k(keep=0.001)",
    "top_k(keep=0.001) | qsgd(levels=127)": "top_k(keep=0.001) | qsgd(levels=127)",
    "dgc: top_k(keep=0.001)": "dgc: top_k(keep=0.001)",
    "sign": "sign",
    "two_phase(qsgd(levels=7, norm='max'))": "two_phase: qsgd(levels=7, norm='max')",
}
_MOST = 0.3  # of the step, that a prediction may be off


class Point(NamedTuple):
    """A method at a rate: seconds of a step."""

    method: str
    rate: float  # Mbit/s that were asked for
    measured: float
    predicted: float

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1


def read(file: Path, methods: list[str] | None = None) -> list[dict[str, str]]:
    """The rows of methods that a line names, of the largest setting in the file.

    Exchanges over links without a relay alone: older files have no column of others.
    """
    with open(file, newline="") as source:
        rows = [row for row in csv.DictReader(source) if row["method"] in METHODS]
    rows = [row for row in rows if row.get("timed", EXCHANGE) == EXCHANGE]
    rows = [row for row in rows if not float(row.get("latency") or 0)]
    if methods:
        rows = [row for row in rows if any(text in row["method"] for text in methods)]
    if not rows:
        raise SystemExit(f"{file} has no row of these methods")
    most = max((int(row["elements"]), int(row["workers"])) for row in rows)
    return [r for r in rows if (int(r["elements"]), int(r["workers"])) == most]


def compare(
    rows: list[dict[str, str]], local: dict[str, float], compute: float
) -> list[Point]:
    """Predict the step of each row.

    Args:
      rows: from `read`.
      local: seconds without links, by method.
      compute: seconds of forward and backward pass.
    """
    points = []
    for row in rows:
        line = METHODS[row["method"]]
        link = network_report.link_of(float(row["measured"]))
        seconds = [local["exact"], local[line]][line == "exact" :]
        found = predict(
            *("resnet50", [line]),
            link=link,
            workers=int(row["workers"]),
            compute=compute,
            local=lambda every, spec, seconds=seconds: seconds,
        )
        step = next(each.step for each in found.rows if each.method == line)
        measured = compute + float(row["ms"]) / 1e3
        points.append(Point(row["method"], float(row["rate"]), measured, step))
    return points


def main(arguments: list[str] | None = None) -> list[Point]:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    add = parser.add_argument
    add("--measured", type=Path, required=True, help="CSV of benchmarks/network.py")
    add("--methods", nargs="+", metavar="TEXT", help="titles with these")
    add("--compute", type=float, default=200.0, metavar="MS", help="of a step")
    args = parser.parse_args(arguments)
    rows = read(args.measured, args.methods)
    lines = dict.fromkeys(["exact", *(METHODS[row["method"]] for row in rows)])
    spec = spec_of_tree("resnet50")
    local = loopback_seconds([*lines], spec, int(rows[0]["workers"]))
    points = compare(rows, local, args.compute / 1e3)
    show(points)
    return points


def show(points: list[Point]) -> None:
    """Print both steps of each method, and whether the methods are ordered alike."""
    by_rate: dict[float, list[Point]] = defaultdict(list)
    for point in points:
        by_rate[point.rate].append(point)
    for rate, theirs in sorted(by_rate.items()):
        print(f"\n{rate:,.0f} Mbit/s, ms of a step: measured, predicted")
        for p in sorted(theirs, key=lambda p: p.measured):
            figures = f"{1e3 * p.measured:9,.0f} {1e3 * p.predicted:9,.0f}"
            print(f"{p.method:44}{figures} {100 * p.off:+.0f} %")
        orders = [
            [p.method for p in sorted(theirs, key=lambda p: getattr(p, which))]
            for which in ("measured", "predicted")
        ]
        worst = max(abs(p.off) for p in theirs)
        order = "the same order" if orders[0] == orders[1] else "another order"
        within = "within" if worst <= _MOST else "not within"
        print(f"{order}; {within} {100 * _MOST:.0f} % ({100 * worst:.0f} % at most)")


if __name__ == "__main__":
    with_pages("benchmarks.predict_check", main)
