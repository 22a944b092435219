"""The page of one run of the convex testbed, or of several side by side."""

from collections.abc import Sequence
from typing import Any

from jaxcomp.report.convex_folder import (
    ConvexRun,
    Evaluations,
    compression,
    evaluations,
)
from jaxcomp.report.page import Card, Numbers, Plot, provenance, render, started
from jaxcomp.report.titles import convex_problem, convex_title, method_names
from jaxcomp.runs.units import bytes_text, number_text, times_text

CAPTION = (
    "Suboptimality f(x) − f* of the mean over workers of their averaged models: left "
    "over the bytes that one worker sent so far, right over steps. Lines are medians "
    "over the seeds, bands reach from the lowest to the highest."
)
HEADS = (
    "epoch",
    "step",
    "seeds",
    "sent",
    "learning rate",
    "suboptimality",
    "lowest",
    "highest",
    "worst worker",
    "consensus distance",
)
RUN_HEADS = (
    "run",
    "method",
    "suboptimality",
    "lowest",
    "highest",
    "worst worker",
    "sent",
    "ratio",
    "steps",
    "seeds",
    "workers",
    "problem",
)


def render_convex_page(runs: Sequence[ConvexRun]) -> str:
    """Writes the page of convex runs.

    Args:
        runs: The runs, one or several.

    Returns:
        The page as text; the same runs give the same text.

    Raises:
        RunError: If the runs do not fit into one plot.
    """
    # Matplotlib takes most of a second to import; only whoever draws pays for it.
    from jaxcomp.report.convex_curves import draw_runs
    from jaxcomp.report.svg import inline_svg

    first, content = runs[0], {}
    if len(runs) == 1:
        title = convex_title(first.config, first.environment.get("method"))
        subtitle = f"run {first.name}{started(first.environment)}"
        content["cards"] = _cards(first)
    else:
        title = f"Convex runs: {', '.join(run.name for run in runs)}"
        subtitle = "suboptimality is the median over the seeds, at the last evaluation"
        content["overview"] = Numbers(RUN_HEADS, map(_run_row, runs))
    return render(
        "convex.html",
        title=title or first.name,
        subtitle=subtitle,
        plot=Plot(inline_svg(draw_runs(runs), "suboptimality"), CAPTION),
        runs=[_part(run, named=len(runs) > 1) for run in runs],
        **content,
    )


def _cards(run: ConvexRun) -> list[Card]:
    found, ratio = evaluations(run), compression(run)
    start, optimum = run.environment.get("start"), run.environment.get("optimum")
    seeds = int(found.seeds[-1])
    middle = "one seed" if seeds == 1 else f"median of {seeds} seeds"
    since = ""
    if isinstance(start, float) and isinstance(optimum, float):
        since = f", {number_text(start - optimum)} at the start"
    return [
        Card("final suboptimality", number_text(found.middle[-1]), middle + since),
        Card(
            "suboptimality of the seeds",
            number_text(found.low[-1]),
            f"lowest; highest {number_text(found.high[-1])}",
        ),
        Card("of the worst worker", number_text(found.worst[-1]), "median"),
        Card("consensus distance", number_text(found.distance[-1]), "at the end"),
        Card(
            "sent per worker in total",
            bytes_text(found.sent[-1]),
            f"uncompressed {bytes_text(found.sent[-1] * ratio)}, simulated",
        ),
        Card("compression", times_text(ratio), "uncompressed / sent"),
        Card(
            "steps", number_text(found.step[-1]), f"epochs: {_number(found.epoch[-1])}"
        ),
    ]


def _run_row(run: ConvexRun) -> list[str]:
    found = evaluations(run)
    return [
        run.name,
        method_names(run.config, run.environment.get("method")),
        number_text(found.middle[-1]),
        number_text(found.low[-1]),
        number_text(found.high[-1]),
        number_text(found.worst[-1]),
        bytes_text(found.sent[-1]),
        times_text(compression(run)),
        number_text(found.step[-1]),
        str(found.seeds[-1]),
        str(run.config.get("workers", "")),
        convex_problem(run.config),
    ]


def _part(run: ConvexRun, named: bool) -> dict[str, Any]:
    found = evaluations(run)
    return {
        "of": f" of {run.name}" if named else "",
        "evaluations": Numbers(HEADS, [_row(found, i) for i in range(found.step.size)]),
        "provenance": provenance(run.config, run.environment),
    }


def _row(found: Evaluations, i: int) -> list[str]:
    return [
        _number(found.epoch[i]),
        number_text(found.step[i]),
        str(found.seeds[i]),
        bytes_text(found.sent[i]),
        number_text(found.rate[i]),
        number_text(found.middle[i]),
        number_text(found.low[i]),
        number_text(found.high[i]),
        number_text(found.worst[i]),
        number_text(found.distance[i]),
    ]


def _number(epoch: float) -> str:
    # Evaluations lie at whole steps, which are odd fractions of an epoch.
    return number_text(round(float(epoch), 2))
