"""How a run ended: finished, stopped before its end, or diverged."""

import re
from typing import NamedTuple

import numpy as np

from jaxcomp.report.run_folder import Run, holds_convex
from jaxcomp.runs.units import number_text

__all__ = ["Ending", "alarms", "ending", "planned_steps"]

_SHARE = 0.1  # of the logged steps, what counts as the end of a run
_WORSE = 1.1  # batches differ: a loss that ends so much above its beginning diverged

# Alarms of a page, by the column of metrics.csv that is above 0.
_ALARMS = {
    "residual_grows": (
        "the residual, which the memory keeps for later steps, grew without bound: the "
        "compressor loses more than the memory can return, so that much of the "
        "gradient never reaches the model. See error_feedback in docs/methods.md."
    ),
    "traced": (
        "bytes were counted in the traced step, because the compiled program could not "
        "be read. The run's console shows which line of it."
    ),
    "skipped_steps": (
        "steps were left out, because a loss or a gradient in them was not finite. "
        "The table of epochs says how many."
    ),
}
_OLD = (
    "This run does not know how many bytes left a worker, which older versions did not "
    "record: its bytes are those of the messages, and there is no ratio."
)


class Ending(NamedTuple):
    """How a run ended, or how far it has come."""

    kind: str  # finished | unfinished | failed | diverged
    text: str


def ending(run: Run) -> Ending:
    """How a run ended.

    Example:
      >>> columns = {"step": np.array([10.0]), "epoch": np.array([1.0])}
      >>> columns["train_loss"] = np.array([0.5])
      >>> ending(Run("a", {"train_for": "20 steps"}, {}, columns)).text
      'unfinished: step 10 of 20'
    """
    failure = run.environment.get("failed")
    if failure:
        return Ending("failed", f"failed: {str(failure).splitlines()[0]}")
    why = _divergence(run)
    if why:
        return Ending("diverged", why)
    if holds_convex(run):
        seeds, planned = np.unique(run.metrics["seed"]).size, run.config.get("seeds", 1)
        if seeds < planned:
            return Ending("unfinished", f"unfinished: seed {seeds} of {planned}")
    done, planned = _last_step(run), planned_steps(run)
    if planned and done < planned:
        done_text, all_text = number_text(done), number_text(planned)
        return Ending("unfinished", f"unfinished: step {done_text} of {all_text}")
    return Ending("finished", "finished")


def planned_steps(run: Run) -> float:
    """The steps of a whole run, or of one seed of it; 0 if they are not known.

    Example:
      >>> table = {"step": np.array([10.0]), "epoch": np.array([1.0])}
      >>> planned_steps(Run("a", {"train_for": "5 epochs"}, {}, table))
      50.0
    """
    words = re.fullmatch(
        r"\s*([\d.]+)\s+(step|epoch|example)s?\s*", str(run.config.get("train_for"))
    )
    if not words:
        return 0.0
    count, unit = float(words[1]), words[2]
    epochs, steps = run.metrics["epoch"], run.metrics["step"]
    if unit == "epoch":
        # Only an epoch that is whole tells how many steps one has: the first.
        count *= float(np.max(steps / np.maximum(epochs, 1e-9)))
    elif unit == "example":
        count /= float(run.config.get("batch_size") or np.inf)
    return float(np.floor(count + 1e-6))


def alarms(run: Run) -> list[str]:
    """What somebody has to know before looking at any figure of a run."""
    why = _divergence(run)
    found = [f"This run diverged: {why}."] if why else []
    failure = run.environment.get("failed")
    if failure:
        found.insert(0, f"This run has failed: {failure}")
    if np.isnan(run.metrics.get("bytes_left", np.zeros(1))[-1]):
        found.append(_OLD)
    for column, text in _ALARMS.items():
        seen = run.metrics.get(column, np.array([]))  # a convex run has none of them
        epochs = run.metrics["epoch"][np.flatnonzero(seen > 0)]
        if epochs.size:
            found.append(f"From epoch {number_text(epochs[0])} on, {text}")
    return found


def _last_step(run: Run) -> float:
    if holds_convex(run):  # the last seed decides
        seeds = run.metrics["seed"]
        return float(np.max(run.metrics["step"][seeds == seeds[-1]]))
    logged = run.steps.get("step", np.array([]))
    return float(max(run.metrics["step"][-1], *logged[-1:], 0))


def _divergence(run: Run) -> str:
    """What says that a run diverged; "" if nothing does."""
    if holds_convex(run):
        end = run.metrics["suboptimality"][-1]
        return "" if np.isfinite(end) else "the suboptimality is not finite"
    losses = run.steps.get("loss", np.array([]))
    losses = losses if losses.size > 1 else run.metrics["train_loss"]
    losses = losses[~np.isnan(losses)]
    if not losses.size:
        return ""
    if not np.isfinite(losses[-1]):
        return "the loss is not finite at the end"
    some = max(1, int(_SHARE * losses.size))
    first, last = float(losses[0]), float(np.median(losses[-some:]))
    if last > _WORSE * first and losses.size > 2:
        return (
            f"the loss ended at {number_text(last)}, above the {number_text(first)} "
            "with which it began"
        )
    return ""
