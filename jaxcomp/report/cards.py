"""The headline numbers of a training run."""

import numpy as np

from jaxcomp.report.curves import message_bytes
from jaxcomp.report.measure import Judged, measure_name, of_part
from jaxcomp.report.page import Card
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title
from jaxcomp.report.whose import holder, leaver, sender
from jaxcomp.runs.units import (
    MISSING,
    bytes_text,
    number_text,
    seconds_text,
    times_fewer,
    times_text,
)

__all__ = ["headline"]


def headline(run: Run) -> list[Card]:
    """The cards of a training run.

    Args:
      run: from `read_run`.

    Returns:
      Seven cards, and up to three more where each worker has a model of its own. A dash
      stands for what was not recorded.
    """
    measure, seconds = of_part(run, "test"), run.metrics["seconds"]
    values, name = run.metrics[measure.column], measure.title
    steps, speed = run.metrics["step"][-1], _images_per_second(run)
    count = f"epochs: {len(seconds):,}, steps: {number_text(steps)}"
    sent, who = message_bytes(run)[-1], sender([run])
    left, exact = (run.metrics[name][-1] for name in ("bytes_left", "exact_bytes_left"))
    whose = " of the mean model" if mixer_title(run.config) else ""
    best = measure.best(values) if np.isfinite(values).any() else None
    return [
        Card(f"final {name}{whose}", *_judged(run, measure, _last(values))),
        Card(f"best {name}{whose}", *_judged(run, measure, best)),
        *_own_cards(run),
        Card(
            f"message of a {who}", bytes_text(_divide(sent, steps)), "in the mean step"
        ),
        Card("bytes saved", times_text(times_fewer(exact, left)), "exact / this run"),
        Card(f"left a {leaver([run])} in total", bytes_text(left), _of_exact(exact)),
        Card("training time", seconds_text(seconds[-1]), f"without compiling; {count}"),
        Card("images per second", number_text(speed), "all workers together"),
    ]


def _own_cards(run: Run) -> list[Card]:
    """Cards of the workers' own models, as far as they were measured."""
    mean, least = of_part(run, "own"), of_part(run, "worst")
    row = _last(run.metrics[mean.column])
    own, when = _judged(run, mean, row)
    worst, _ = _judged(run, least, row)
    name = measure_name(run)
    distance = run.metrics["consensus_distance"][-1]
    apart = number_text(distance) if np.isfinite(distance) else MISSING
    cards = [
        Card(f"own test {name}", own, f"mean of the {holder([run])}s, {when}"),
        Card(f"worst own {name}", worst, f"of one {holder([run])}, {when}"),
        Card("consensus distance", apart, "at the end"),
    ]
    return [card for card in cards if card.value != MISSING]


def _of_exact(exact: float) -> str:
    known = np.isfinite(exact)
    return f"with exact {bytes_text(exact)}" if known else "not recorded by this run"


def _judged(run: Run, measure: Judged, row: int | None) -> tuple[str, str]:
    """A value, and the epoch in which it was measured."""
    if row is None:
        return MISSING, "not evaluated"
    epoch = number_text(run.metrics["epoch"][row])
    return measure.text(run.metrics[measure.column][row]), f"epoch {epoch}"


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
