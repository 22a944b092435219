"""The few numbers that say how a run went."""

from typing import NamedTuple

import numpy as np

from jaxcomp.report.run_folder import Run


class Summary(NamedTuple):
    """Headline numbers of a run, NaN where nothing was recorded."""

    final_accuracy: float  # on the test set, of the last epoch that was evaluated
    final_epoch: float
    best_accuracy: float
    best_epoch: float  # the first that reached it
    own_accuracy: float  # mean of the workers' own models, of the last epoch with one
    worst_accuracy: float  # the lowest of them
    own_epoch: float
    consensus_distance: float  # of the workers' models from their mean, at the end
    wire_bytes_per_step: float  # of one worker, mean of the run
    dense_bytes_per_step: float  # the same for the uncompressed gradient
    ratio: float
    wire_bytes: float  # of one worker during the run
    dense_bytes: float
    steps: float
    epochs: int
    seconds: float  # of training steps, without compiling
    images_per_second: float  # median over the logged steps, else mean of the run


def summarize(run: Run) -> Summary:
    """The headline numbers of a run."""
    metrics = run.metrics
    accuracy, epoch = metrics["test_accuracy"], metrics["epoch"]
    seen = np.flatnonzero(np.isfinite(accuracy))
    final = seen[-1] if seen.size else None
    best = seen[np.argmax(accuracy[seen])] if seen.size else None
    judged = np.flatnonzero(np.isfinite(metrics["own_accuracy"]))
    own = judged[-1] if judged.size else None
    steps = metrics["step"][-1]
    wire, dense = bytes_sent(run, "wire")[-1], bytes_sent(run, "dense")[-1]
    return Summary(
        final_accuracy=_at(accuracy, final),
        final_epoch=_at(epoch, final),
        best_accuracy=_at(accuracy, best),
        best_epoch=_at(epoch, best),
        own_accuracy=_at(metrics["own_accuracy"], own),
        worst_accuracy=_at(metrics["worst_accuracy"], own),
        own_epoch=_at(epoch, own),
        consensus_distance=float(metrics["consensus_distance"][-1]),
        wire_bytes_per_step=_divide(wire, steps),
        dense_bytes_per_step=_divide(dense, steps),
        ratio=_divide(dense, wire),
        wire_bytes=float(wire),
        dense_bytes=float(dense),
        steps=float(steps),
        epochs=len(epoch),
        seconds=float(metrics["seconds"][-1]),
        images_per_second=_images_per_second(run),
    )


def bytes_sent(run: Run, kind: str) -> np.ndarray:
    """Adds up the bytes that one worker sent until the end of each epoch.

    Args:
        run: The run.
        kind: `"wire"` for what was sent, `"dense"` for what the uncompressed
            gradient would have been.

    Returns:
        One number per epoch.

    >>> columns = {"step": np.array([10.0, 20.0, 25.0])}
    >>> columns["wire_bytes_per_step"] = np.array([100.0, 100.0, 40.0])
    >>> bytes_sent(Run("run", {}, {}, columns, {}), "wire")
    array([1000., 2000., 2200.])
    """
    # The bytes of a step may change between epochs, so the total of the last epoch
    # is not its bytes per step times all steps.
    steps_of_epoch = np.diff(run.metrics["step"], prepend=0.0)
    return np.cumsum(steps_of_epoch * run.metrics[f"{kind}_bytes_per_step"])


def _images_per_second(run: Run) -> float:
    # The median leaves out the first step, which compiles.
    logged = run.steps["images_per_second"]
    logged = logged[np.isfinite(logged)]
    if logged.size:
        return float(np.median(logged))
    return _divide(run.metrics["examples"][-1], run.metrics["seconds"][-1])


def _at(values: np.ndarray, index: int | np.integer | None) -> float:
    return float("nan") if index is None else float(values[index])


def _divide(dividend: float, divisor: float) -> float:
    return float(dividend / divisor) if divisor else float("nan")
