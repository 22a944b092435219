"""The best figures of each group, and the rule by which they were chosen."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.curves import message_bytes
from jaxcomp.report.endings import ending
from jaxcomp.report.groups import Group
from jaxcomp.report.measure import Judged
from jaxcomp.report.plot import Axis, Panel, Plot, Series
from jaxcomp.report.run_folder import Run, holds_convex
from jaxcomp.report.titles import convex_problem
from jaxcomp.report.whose import leaver

__all__ = [
    "Best",
    "are_comparable",
    "best_of",
    "front",
    "rule",
    "seeds",
    "trade_off",
    "unfinished",
    "winner",
]


class Best(NamedTuple):
    """The best of each run of a group; means over the runs and their range."""

    value: float
    low: float
    high: float
    epoch: float  # of the best
    last: float  # the value at the end
    left: float  # bytes that left a worker, device or host in the whole run
    exact: float  # what would have left it with `exact`
    message: float  # bytes of a worker's or device's messages
    seconds: float


def best_of(group: Group, measure: Judged) -> Best:
    """The best of each run of a group: means over the runs, medians of convex ones."""
    found = [one for run in group.runs for one in _of_run(run, measure)]
    table = np.array([list(one) for one in found], float)
    middle = np.median if holds_convex(group.runs[0]) else np.mean
    value, *others = middle(table, axis=0).tolist()
    values = table[:, 0]
    return Best(value, float(values.min()), float(values.max()), *others)


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
    """The place of the best group; of equal ones, of the one whom the least left.

    Groups that have not come to their end are left out. None where the groups had
    different things to learn, or nothing was measured.
    """
    if not are_comparable(groups):
        return None
    values = np.array([one.value for one in _of_ended(groups, found)])
    if not np.isfinite(values).any():
        return None
    top = values[measure.best(values)]
    equal = np.flatnonzero(values == top)
    left = np.nan_to_num([found[int(i)].left for i in equal], nan=np.inf)
    return int(equal[np.argmin(left)])


def unfinished(group: Group) -> str:
    """How far the runs of a group have come that are not at their end; "" if all are.

    A run that diverged has come to its end, as far as anybody knows.
    """
    ends = [ending(run) for run in group.runs]
    texts = [end.text for end in ends if end.kind in ("unfinished", "failed")]
    return "; ".join(dict.fromkeys(texts))


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
    if any(map(unfinished, groups)):
        text += ". What is said of a run that has not ended is of its steps so far"
    marked = f"Marked is the row whose best is {ways}, of runs that have ended; of"
    return f"{text}. {marked} equal ones, the one with the fewest bytes."


def front(found: Sequence[Best], measure: Judged) -> list[tuple[float, float]]:
    """Bytes and values of those that nothing beats in both, with the least bytes first.

    Example:
      >>> three = [(0.9, 5.0), (0.8, 6.0), (0.95, 9.0)]
      >>> found = [Best(v, v, v, 1.0, v, left, 9.0, 9.0, 1.0) for v, left in three]
      >>> front(found, Judged("test_accuracy", "percent", True))
      [(5.0, 0.9), (9.0, 0.95)]
    """
    sign = 1 if measure.higher else -1
    steps: list[tuple[float, float]] = []
    for one in sorted(found, key=lambda one: (one.left, -sign * one.value)):
        if not np.isfinite([one.left, one.value]).all():
            continue
        if not steps or sign * one.value > sign * steps[-1][1]:
            steps.append((one.left, one.value))
    return steps


def trade_off(groups: Sequence[Group], measure: Judged) -> Plot | None:
    """What each group reached over what it sent; None without bytes or values."""
    found = _of_ended(groups, [best_of(group, measure) for group in groups])
    series = [
        Series(
            group.key,
            group.label,
            slot,
            *(np.array([x]) for x in (one.left, one.value, one.low, one.high)),
            points=True,
            short=group.short,
        )
        for slot, (group, one) in enumerate(zip(groups, found, strict=True))
        if np.isfinite([one.left, one.value]).all() and one.left > 0
    ]
    if len(series) < 2:
        return None
    left = [float(one.x[0]) for one in series]
    who = leaver([run for group in groups for run in group.runs])
    across = Axis(f"bytes that left one {who} in the whole run", "bytes")
    panel = Panel(
        across._replace(log=max(left) > 4 * min(left)),
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


def _of_ended(groups: Sequence[Group], found: Sequence[Best]) -> list[Best]:
    """The figures, without a value for a group that has not come to its end."""
    return [
        one._replace(value=float("nan")) if unfinished(group) else one
        for group, one in zip(groups, found, strict=True)
    ]


def _of_run(run: Run, measure: Judged) -> list[tuple[float, ...]]:
    """What `Best` has without the range, of each seed."""
    if holds_convex(run):
        return [_of_seed(run, seed) for seed in np.unique(run.metrics["seed"])]
    values, epochs = run.metrics[measure.column], run.metrics["epoch"]
    seen = np.flatnonzero(np.isfinite(values))
    best = measure.best(values) if seen.size else 0
    last = values[seen[-1]] if seen.size else np.nan
    ends = [run.metrics[name][-1] for name in ("bytes_left", "exact_bytes_left")]
    ends += [message_bytes(run)[-1], run.metrics["seconds"][-1]]
    figures = (values[best], epochs[best], last, *ends)
    return [tuple(float(figure) for figure in figures)]


def _of_seed(run: Run, seed: float) -> tuple[float, ...]:
    rows = np.flatnonzero(run.metrics["seed"] == seed)
    end = rows[np.argmax(run.metrics["step"][rows])]
    names = ("bytes_left", "exact_bytes_left", "bytes_sent")
    value, epoch, *sent = (
        float(run.metrics[name][end]) for name in ("suboptimality", "epoch", *names)
    )
    return (value, epoch, value, *sent, float("nan"))
