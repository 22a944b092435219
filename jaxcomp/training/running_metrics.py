"""Figures of steps, gathered between two looks: sums, means, and what is wrong."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp import parallel
from jaxcomp.core.errors import RunFailed
from jaxcomp.parallel.placing import of_processes
from jaxcomp.runs.table import METRICS
from jaxcomp.training.step import StepMetrics


class Scores(NamedTuple):
    """Loss and accuracy of one model on the test set, and what else the task scores."""

    loss: float
    accuracy: float
    figures: Mapping[str, float] = {}


class OwnScores(NamedTuple):
    """The task's measure of the workers' own models, each on the whole test set."""

    mean: float
    worst: float


class NonFinite(RunFailed, FloatingPointError):
    """A step produced a non-finite number; it was not applied."""


class Diverged(RunFailed):
    """A loss was above the limit that the config sets."""


class Timing(NamedTuple):
    """Where the wall time of a step went; the parts do not overlap.

    On accelerators the host runs ahead of the devices and waits for them at the next
    look only. So nothing is known of a single step: these are means over the steps
    between two looks, and they add up to the wall time.
    """

    data: float
    step: float  # handing the step to the devices
    wait: float  # until the devices were done, and what the loop itself needs

    @property
    def total(self) -> float:
        return sum(self)


class Totals(NamedTuple):
    """Sums over the steps of an epoch so far, of the figures in `METRICS`."""

    steps: int = 0
    wire: float = 0.0  # bytes that a worker sent
    traced: float = 0.0  # steps whose program could not be read, only its trace
    sums: dict[str, float] = {}  # by metric; never changed in place
    counts: dict[str, float] = {}  # the steps that have the figure

    def add(self, figures: dict[str, float]) -> "Totals":
        """Return this with one more step; figures that are not finite are left out."""
        sums, counts = dict(self.sums), dict(self.counts)
        for metric in METRICS:
            if metric.of_step not in figures:
                continue
            value = figures[metric.of_step]
            known = math.isfinite(value)
            goes_on = metric.over_steps != "last"
            before = sums.get(metric.name, 0.0) if goes_on or not known else 0.0
            sums[metric.name] = before + (value if known else 0.0)
            counts[metric.name] = counts.get(metric.name, 0.0) + known
        return self._replace(steps=self.steps + 1, sums=sums, counts=counts)

    def bytes_per_step(self) -> float:
        """Mean bytes that a worker sent in a step; whole where it is a whole number."""
        mean = self.wire / max(self.steps, 1)
        return int(mean) if mean.is_integer() else mean

    def figures(self) -> dict[str, float | None]:
        """Figures of the epoch, None where no step had one."""
        kinds = {metric.name: metric.over_steps for metric in METRICS}
        return {
            name: None
            if not self.counts[name]
            else total / (self.counts[name] if kinds[name] == "mean" else 1)
            for name, total in self.sums.items()
        }


def of_all_workers(taken: list[StepMetrics]) -> list[StepMetrics]:
    """The figures of the workers of all processes, each with the norm of all leaves.

    All processes must call it at the same place.

    Args:
      taken: steps, of this process's workers.
    """
    if jax.process_count() == 1:
        return taken
    short = [m._replace(gradient_norms=_whole_norms(m)) for m in taken]
    leaves, structure = jax.tree.flatten(short)
    mine = np.stack([np.ravel(leaf) for leaf in leaves]).astype(np.float64)
    rows = np.concatenate(of_processes(mine), axis=1)
    found = jax.tree.unflatten(structure, list(rows))
    return [m._replace(gradient_norms=m.gradient_norms[:, None]) for m in found]


def step_figures(metrics: StepMetrics) -> dict[str, float]:
    """The figures of a step, means over the workers.

    NaN where there is none: the error of a step at which nothing was sent.
    """
    silent = not np.all(metrics.sends)
    return {
        "loss": _mean(metrics.loss),
        "accuracy": _mean(metrics.accuracy),
        "gradient_norm": float(np.mean(_whole_norms(metrics))),
        "residual_norm": _mean(metrics.residual_norm),
        "gradient_error": math.nan if silent else _mean(metrics.gradient_error),
        **{name: _mean(value) for name, value in metrics.figures.items()},
        **_left_out(metrics),
    }


def check_applied(number: int, metrics: StepMetrics, names: list[str]) -> None:
    """Raise `NonFinite` with the step, the norms and the leaf, if a step failed.

    Args:
      number: of the step, from 0.
      metrics: of this process's workers.
      names: of the parameters, in the order of `metrics.gradient_norms`.
    """
    if not _left_out(metrics)["skipped"]:
        return
    norms = np.asarray(metrics.gradient_norms)
    bad = [
        f"  worker {worker}: {names[leaf]} has norm {norms[worker, leaf]}"
        for worker, leaf in np.argwhere(~np.isfinite(norms))
    ]
    losses = ", ".join(f"{loss:.6g}" for loss in np.ravel(metrics.loss))
    finite = np.where(np.isfinite(norms), norms, 0.0)
    message = [
        f"step {number + 1} is not finite and was not applied (loss: {losses})",
        *(bad[:5] or ["  every local gradient is finite; the exchanged one is not"]),
        *([f"  and {len(bad) - 5} more"] if len(bad) > 5 else []),
        f"  largest finite norm of a gradient: {np.max(finite):.6g}",
        "Lower the learning rate, clip (--config.clip='local(limit=1)'), or leave out "
        "such steps with --config.nonfinite=skip.",
    ]
    raise NonFinite("\n".join(message))


def check_loss(number: int, metrics: StepMetrics, limit: float) -> None:
    """Raise `Diverged` if the loss of a worker in a step is above a limit.

    A step that was left out does not count: its loss may be infinite.

    Args:
      number: of the step, from 0.
      metrics: of this process's workers.
      limit: of the loss; 0 for none.
    """
    counted = np.where(metrics.applied, np.asarray(metrics.loss, np.float64), -np.inf)
    largest = float(np.max(counted))
    if limit and largest > limit:
        raise Diverged(
            f"step {number + 1} has diverged: a worker's loss is {largest:.6g}, above "
            f"loss_limit={limit:g}"
        )


def _left_out(metrics: StepMetrics) -> dict[str, float]:
    """The shares of workers that left a step out: as not finite, and as an overflow.

    Where all leave it out together, a worker cannot know that the loss of another one
    was not finite, and takes its own gradient for an overflow.
    """
    lost = ~np.asarray(metrics.applied, bool)
    if "overflowed" not in metrics.figures:
        return {"skipped": _mean(lost)}
    overflowed = np.asarray(metrics.figures["overflowed"], bool)
    if lost.all() and not overflowed.all():
        overflowed = np.zeros_like(overflowed)
    return {"skipped": _mean(lost & ~overflowed), "overflowed": _mean(overflowed)}


def check_some_applied(skipped: float, steps: int) -> None:
    """Raise `NonFinite` if no step of a run was applied: nothing was learned."""
    if steps and skipped >= steps:
        raise NonFinite(
            f"not one of {steps} steps was finite, so that nothing was learned. Lower "
            "the learning rate, clip (--config.clip='local(limit=1)'), or see which "
            "step fails with --config.nonfinite=stop."
        )


def _whole_norms(metrics: StepMetrics) -> np.ndarray:
    """The norm of each worker's gradient, from those of its leaves."""
    norms = np.asarray(metrics.gradient_norms, np.float64)
    return np.sqrt(np.sum(norms**2, axis=-1))


def _mean(per_worker: Any) -> float:
    return float(np.mean(np.asarray(per_worker, np.float64)))


class LogWindow(NamedTuple):
    """The steps since the last look."""

    taken: list[StepMetrics]  # their figures, on the devices
    began: float  # when the last look ended
    data: float = 0.0  # seconds for loading
    issue: float = 0.0  # seconds for handing steps to the devices


def open_window() -> LogWindow:
    """A window without steps."""
    return LogWindow([], time.perf_counter())


def read_window(window: LogWindow) -> tuple[list[StepMetrics], Timing]:
    """The figures of a window, and the mean timing of its steps; waits for them."""
    taken, steps = parallel.to_host(window.taken), len(window.taken)
    rest = time.perf_counter() - window.began - window.data - window.issue
    return taken, Timing(window.data / steps, window.issue / steps, rest / steps)
