"""The headline numbers of a training run."""

import numpy as np

from jaxcomp.report.page import Card
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title
from jaxcomp.runs.units import (
    MISSING,
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)

__all__ = ["bytes_sent", "headline"]


def headline(run: Run) -> list[Card]:
    """The cards of a training run.

    Args:
      run: from `read_run`.

    Returns:
      Seven cards, and up to three more where each worker has a model of its own. A dash
      stands for what was not recorded.
    """
    accuracy, seconds = run.metrics["test_accuracy"], run.metrics["seconds"]
    steps, speed = run.metrics["step"][-1], _images_per_second(run)
    count = f"epochs: {len(seconds):,}, steps: {number_text(steps)}"
    sent, dense = bytes_sent(run, "wire")[-1], bytes_sent(run, "dense")[-1]
    per_step = _sent(_divide(sent, steps), _divide(dense, steps))
    whose = " of the mean model" if mixer_title(run.config) else ""
    seen = np.flatnonzero(np.isfinite(accuracy))
    best = seen[np.argmax(accuracy[seen])] if seen.size else None
    return [
        Card(f"final test accuracy{whose}", *_accuracy(run, "test", _last(accuracy))),
        Card(f"best test accuracy{whose}", *_accuracy(run, "test", best)),
        *_own_cards(run),
        Card("sent per worker and step", *per_step),
        Card("compression", times_text(_divide(dense, sent)), "uncompressed / sent"),
        Card("sent per worker in total", *_sent(sent, dense)),
        Card("training time", seconds_text(seconds[-1]), f"without compiling; {count}"),
        Card("images per second", number_text(speed), "all workers together"),
    ]


def bytes_sent(run: Run, kind: str) -> np.ndarray:
    """The bytes that one worker has sent by the end of each epoch.

    Args:
      run: from `read_run`.
      kind: "wire" for what was sent, "dense" for what it would have been without
        compression.

    Example:
      >>> columns = {"step": np.array([10.0, 20.0, 25.0])}
      >>> columns["wire_bytes_per_step"] = np.array([100.0, 100.0, 40.0])
      >>> bytes_sent(Run("run", {}, {}, columns), "wire")
      array([1000., 2000., 2200.])
    """
    # The bytes of a step may change between epochs, so the total of the last epoch
    # is not its bytes per step times all steps.
    steps_of_epoch = np.diff(run.metrics["step"], prepend=0.0)
    return np.cumsum(steps_of_epoch * run.metrics[f"{kind}_bytes_per_step"])


def _own_cards(run: Run) -> list[Card]:
    """Cards of the workers' own models, as far as they were measured."""
    judged = _last(run.metrics["own_accuracy"])
    own, when = _accuracy(run, "own", judged)
    worst, _ = _accuracy(run, "worst", judged)
    distance = run.metrics["consensus_distance"][-1]
    apart = number_text(distance) if np.isfinite(distance) else MISSING
    cards = [
        Card("own test accuracy", own, f"mean of the workers, {when}"),
        Card("worst own accuracy", worst, f"of one worker, {when}"),
        Card("consensus distance", apart, "at the end"),
    ]
    return [card for card in cards if card.value != MISSING]


def _sent(sent: float, dense: float) -> tuple[str, str]:
    return bytes_text(sent), f"uncompressed {bytes_text(dense)}"


def _accuracy(run: Run, whose: str, row: int | None) -> tuple[str, str]:
    """An accuracy, and the epoch in which it was measured."""
    if row is None:
        return MISSING, "not evaluated"
    epoch = number_text(run.metrics["epoch"][row])
    return percent_text(run.metrics[f"{whose}_accuracy"][row]), f"epoch {epoch}"


def _last(values: np.ndarray) -> int | None:
    """The place of the last number that was recorded."""
    seen = np.flatnonzero(np.isfinite(values))
    return int(seen[-1]) if seen.size else None


def _images_per_second(run: Run) -> float:
    # The median leaves out the first step, which compiles.
    logged = run.steps["images_per_second"]
    logged = logged[np.isfinite(logged)]
    if logged.size:
        return float(np.median(logged))
    return _divide(run.metrics["examples"][-1], run.metrics["seconds"][-1])


def _divide(dividend: float, divisor: float) -> float:
    return float(dividend / divisor) if divisor else float("nan")
