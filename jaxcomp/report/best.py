"""The best figures of each group, and the rule by which they were chosen."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.curves import bytes_sent
from jaxcomp.report.evaluations import compression
from jaxcomp.report.groups import Group
from jaxcomp.report.measure import Judged
from jaxcomp.report.plot import Axis, Panel, Plot, Series
from jaxcomp.report.run_folder import Run, holds_convex
from jaxcomp.report.titles import convex_problem
from jaxcomp.report.whose import sender

__all__ = [
    "Best",
    "are_comparable",
    "best_of",
    "front",
    "rule",
    "seeds",
    "trade_off",
    "winner",
]


class Best(NamedTuple):
    """The best of each run of a group; means over the runs and their range."""

    value: float
    low: float
    high: float
    epoch: float  # of the best
    last: float  # the value at the end
    sent: float  # bytes of one worker, or device, in the whole run
    dense: float  # what they would have been without compression
    seconds: float


def best_of(group: Group, measure: Judged) -> Best:
    """The best of each run of a group: means over the runs, medians of convex ones."""
    found = [one for run in group.runs for one in _of_run(run, measure)]
    table = np.array([list(one) for one in found], float)
    middle = np.median if holds_convex(group.runs[0]) else np.mean
    value, epoch, last, sent, dense, seconds = middle(table, axis=0)
    values = table[:, 0]
    return Best(
        *(float(x) for x in (value, values.min(), values.max())),
        *(float(x) for x in (epoch, last, sent, dense, seconds)),
    )


def seeds(group: Group) -> int:
    """The number of seeds of a group; a convex run has several of its own."""
    if holds_convex(group.runs[0]):
        return sum(np.unique(run.metrics["seed"]).size for run in group.runs)
    return len(group.runs)


def are_comparable(groups: Sequence[Group]) -> bool:
    """Whether the groups had the same to learn, so that one can be the best of them."""
    configs = [run.config for group in groups for run in group.runs]
    tasks = {
        (convex_problem(c), str(c.get("task")), str(c.get("dataset"))) for c in configs
    }
    return len(tasks) == 1


def winner(
    groups: Sequence[Group], found: Sequence[Best], measure: Judged
) -> int | None:
    """The place of the best group; of equal ones, of the one that sent least.

    None where the groups had different things to learn, or nothing was measured.
    """
    if not are_comparable(groups):
        return None
    values = np.array([one.value for one in found])
    if not np.isfinite(values).any():
        return None
    top = values[measure.best(values)]
    equal = np.flatnonzero(values == top)
    sent = np.nan_to_num([found[int(i)].sent for i in equal], nan=np.inf)
    return int(equal[np.argmin(sent)])


def rule(measure: Judged, groups: Sequence[Group]) -> str:
    """How the best was chosen, in words."""
    ways = "highest" if measure.higher else "lowest"
    if holds_convex(groups[0].runs[0]):
        middle, text = "medians", f"A run's figure is its {measure.title} at the end"
    else:
        middle, text = (
            "means",
            f"A run's best is the {ways} {measure.title} of any epoch",
        )
        if measure.column.startswith("test_"):
            text += (
                "; choosing the epoch by the test set flatters every run, so the value "
                "of the last epoch stands beside it"
            )
    if max(map(seeds, groups)) > 1:
        text += (
            f". Runs that differ only in the seed are one row: {middle} over the seeds"
        )
    if not are_comparable(groups):
        return (
            f"{text}. The runs had different things to learn, so that none is marked."
        )
    marked = f"Marked is the row whose best is {ways}; of equal ones, the one that sent"
    return f"{text}. {marked} least."


def front(found: Sequence[Best], measure: Judged) -> list[tuple[float, float]]:
    """Bytes and values of those that nothing beats in both, with the least bytes first.

    Example:
      >>> three = [(0.9, 5.0), (0.8, 6.0), (0.95, 9.0)]
      >>> found = [Best(v, v, v, 1.0, v, sent, 9.0, 1.0) for v, sent in three]
      >>> front(found, Judged("test_accuracy", "percent", True))
      [(5.0, 0.9), (9.0, 0.95)]
    """
    sign = 1 if measure.higher else -1
    steps: list[tuple[float, float]] = []
    for one in sorted(found, key=lambda one: (one.sent, -sign * one.value)):
        if not np.isfinite([one.sent, one.value]).all():
            continue
        if not steps or sign * one.value > sign * steps[-1][1]:
            steps.append((one.sent, one.value))
    return steps


def trade_off(groups: Sequence[Group], measure: Judged) -> Plot | None:
    """What each group reached over what it sent; None without bytes or values."""
    found = [best_of(group, measure) for group in groups]
    series = [
        Series(
            group.key,
            group.label,
            slot,
            *(np.array([x]) for x in (one.sent, one.value, one.low, one.high)),
            points=True,
            short=group.short,
        )
        for slot, (group, one) in enumerate(zip(groups, found, strict=True))
        if np.isfinite([one.sent, one.value]).all() and one.sent > 0
    ]
    if len(series) < 2:
        return None
    sent = [float(one.x[0]) for one in series]
    who = sender([run for group in groups for run in group.runs])
    across = Axis(f"bytes that one {who} sent in the whole run", "bytes")
    panel = Panel(
        across._replace(log=max(sent) > 4 * min(sent)),
        Axis(f"best {measure.title}", measure.unit),
        series,
        front=front(found, measure),
    )
    better = "left and up" if measure.higher else "left and down"
    caption = (
        f"The best {measure.title} of each group over the bytes that it cost: better "
        f"is {better}. The dashed line is the Pareto front: no group has both a better "
        "value and fewer bytes than those on it. Bars reach from the lowest to the "
        "highest of the seeds."
    )
    return Plot(
        f"{measure.title.capitalize()} against bytes", caption, [panel], wide=True
    )


def _of_run(run: Run, measure: Judged) -> list[tuple[float, ...]]:
    """Best, epoch, end, bytes, uncompressed bytes and seconds; of each seed."""
    if holds_convex(run):
        return [_of_seed(run, seed) for seed in np.unique(run.metrics["seed"])]
    values, epochs = run.metrics[measure.column], run.metrics["epoch"]
    seen = np.flatnonzero(np.isfinite(values))
    sent, dense = (float(bytes_sent(run, kind)[-1]) for kind in ("wire", "dense"))
    best = measure.best(values) if seen.size else 0
    last = values[seen[-1]] if seen.size else np.nan
    seconds = run.metrics["seconds"][-1]
    figures = (values[best], epochs[best], last, sent, dense, seconds)
    return [tuple(float(figure) for figure in figures)]


def _of_seed(run: Run, seed: float) -> tuple[float, ...]:
    rows = np.flatnonzero(run.metrics["seed"] == seed)
    end = rows[np.argmax(run.metrics["step"][rows])]
    value, epoch, sent = (
        float(run.metrics[name][end])
        for name in ("suboptimality", "epoch", "bytes_sent")
    )
    return (value, epoch, value, sent, sent * compression(run), float("nan"))
