"""The page of one run of the convex testbed, or of several side by side."""

from collections.abc import Sequence
from html import escape

from jaxcomp.report.convex_folder import (
    ConvexRun,
    Evaluations,
    compression,
    evaluations,
)
from jaxcomp.report.page import Card, command_line, figure, frame, headline, started
from jaxcomp.report.tables import numbers_table, pairs_table
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

    first = runs[0]
    if len(runs) == 1:
        title = convex_title(first.config, first.environment.get("method"))
        subtitle = f"run {first.name}{started(first.environment)}"
        top = headline(_cards(first))
    else:
        title = f"Convex runs: {', '.join(run.name for run in runs)}"
        subtitle = "suboptimality is the median over the seeds, at the last evaluation"
        top = f"<h2>Runs</h2>\n{numbers_table(RUN_HEADS, map(_run_row, runs))}"
    svg = inline_svg(draw_runs(runs), "suboptimality")
    body = f"""{top}
<h2>Suboptimality</h2>
{figure(svg, CAPTION)}
{"".join(_section(run, named=len(runs) > 1) for run in runs)}"""
    return frame(title or first.name, subtitle, body)


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


def _section(run: ConvexRun, named: bool) -> str:
    environment = dict(run.environment)
    command = environment.pop("command", None)
    of = f" of {escape(run.name)}" if named else ""
    found = evaluations(run)
    rows = [_row(found, i) for i in range(found.step.size)]
    return f"""<h2>Evaluations{of}</h2>
{numbers_table(HEADS, rows)}
<div class="tables">
<section>
<h2>Config{of}</h2>
{pairs_table(run.config, "config.json is missing or cut off")}
</section>
<section>
<h2>Environment{of}</h2>
{pairs_table(environment, "environment.json is missing or cut off")}
</section>
</div>
<h2>Command{of}</h2>
{command_line(command)}
"""


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
