"""Sums over an epoch, kept on the host and in the checkpoint."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp import parallel
from jaxcomp.errors import RunFailed
from jaxcomp.training.step import StepMetrics

__all__ = [
    "NonFinite",
    "Timing",
    "Totals",
    "check_applied",
    "gradient_norm",
    "residual_norm",
    "step_row",
]


class NonFinite(RunFailed, FloatingPointError):
    """A step produced a non-finite number; it was not applied."""


class Timing(NamedTuple):
    """Where the time of one step went; the parts do not overlap."""

    data: float
    step: float  # handing the step to the devices
    wait: float  # until the devices were done

    @property
    def total(self) -> float:
        return sum(self)


class Totals(NamedTuple):
    """Sums over the steps of an epoch so far, and the last residual."""

    steps: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    gradient_error: float = 0.0
    reports: int = 0  # steps at which something was sent
    residual_norm: float = 0.0
    wire: float = 0.0  # bytes that a worker sent
    traced: float = 0.0  # steps whose program could not be read, only its trace
    overflow: float = 0.0  # elements that found no room in a message

    def add(self, metrics: StepMetrics) -> "Totals":
        """With one more step, averaged over the workers that this process sees."""
        error = _error_of(metrics)
        silent = math.isnan(error)
        return self._replace(
            steps=self.steps + 1,
            loss=self.loss + _mean(metrics.loss),
            accuracy=self.accuracy + _mean(metrics.accuracy),
            gradient_error=self.gradient_error + (0 if silent else error),
            reports=self.reports + (not silent),
            residual_norm=residual_norm(metrics),
            overflow=self.overflow + _mean(metrics.figures.get("overflow", 0)),
        )

    def bytes_per_step(self) -> float:
        """Mean bytes that a worker sent in a step; whole where it is a whole number."""
        mean = self.wire / max(self.steps, 1)
        return int(mean) if mean.is_integer() else mean

    def over_processes(self) -> "Totals":
        """The mean over all processes; each sees its own workers only."""
        sums = parallel.sum_over_processes(np.asarray(self, np.float64))
        means = Totals(*(sums / jax.process_count()).tolist())
        return means._replace(steps=round(means.steps), reports=round(means.reports))

    def means(self) -> dict[str, float]:
        """Figures of the epoch."""
        steps = max(self.steps, 1)
        return {
            "train_loss": self.loss / steps,
            "train_accuracy": self.accuracy / steps,
            "gradient_error": self.gradient_error / max(self.reports, 1),
            "residual_norm": self.residual_norm,
            "overflow": self.overflow / steps,
        }


def step_row(
    number: int, metrics: StepMetrics, timing: Timing, batch_size: int
) -> dict[str, Any]:
    """One row of steps.csv; the loop adds epoch and learning rate."""
    return {
        "step": number + 1,
        "loss": _mean(metrics.loss),
        "accuracy": _mean(metrics.accuracy),
        "data_seconds": timing.data,
        "step_seconds": timing.step,
        "wait_seconds": timing.wait,
        "images_per_second": batch_size / timing.total,
        "gradient_norm": gradient_norm(metrics),
        "residual_norm": residual_norm(metrics),
        "gradient_error": _error_of(metrics),
        **{name: _mean(value) for name, value in metrics.figures.items()},
    }


def gradient_norm(metrics: StepMetrics) -> float:
    """Norm of the local gradient, mean over the workers."""
    norms = np.asarray(metrics.gradient_norms, np.float64)
    return float(np.mean(np.sqrt(np.sum(norms**2, axis=-1))))


def residual_norm(metrics: StepMetrics) -> float:
    """Norm of what was kept and not sent, mean over the workers."""
    return _mean(metrics.residual_norm)


def check_applied(number: int, metrics: StepMetrics, names: list[str]) -> None:
    """Raise `NonFinite` with the step, the norms and the leaf, if a step failed.

    Args:
      number: of the step, from 0.
      metrics: of this process's workers.
      names: of the parameters, in the order of `metrics.gradient_norms`.
    """
    if np.all(metrics.applied):
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
        "Lower the learning rate, clip (--config.clip_norm=1), or leave out such steps "
        "with --config.nonfinite=skip.",
    ]
    raise NonFinite("\n".join(message))


def _error_of(metrics: StepMetrics) -> float:
    """The mean error; NaN where nothing was sent, and there is none."""
    return _mean(metrics.gradient_error) if np.all(metrics.sends) else math.nan


def _mean(per_worker: Any) -> float:
    return float(np.mean(np.asarray(per_worker, np.float64)))
