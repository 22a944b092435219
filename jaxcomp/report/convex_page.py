"""The page of one run of the convex testbed, or of several side by side."""

from collections.abc import Sequence

from jaxcomp.report.evaluations import compression, evaluations
from jaxcomp.report.page import Card, Drawing, provenance, render, started
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import convex_problem, convex_title, method_names
from jaxcomp.runs.units import bytes_text, number_text, times_text

__all__ = ["render_convex_page"]

_CAPTION = (
    "Suboptimality f(x) − f*, where x is the mean over workers of their averaged "
    "models, over the bytes that one worker has sent (left) and over steps (right). "
    "Lines are medians over the seeds, bands reach from the lowest to the highest."
)


def _rounded(epoch: float) -> str:
    # Evaluations lie at whole steps, which are odd fractions of an epoch.
    return number_text(round(float(epoch), 2))


# Columns of the table of evaluations: column of `evaluations`, heading, text.
_COLUMNS = (
    ("epoch", "epoch", _rounded),
    ("step", "step", number_text),
    ("seeds", "seeds", str),
    ("bytes_sent", "sent", bytes_text),
    ("learning_rate", "learning rate", number_text),
    ("suboptimality", "suboptimality", number_text),
    ("lowest", "lowest", number_text),
    ("highest", "highest", number_text),
    ("worst_suboptimality", "worst worker", number_text),
    ("consensus_distance", "consensus distance", number_text),
)


def render_convex_page(runs: Sequence[Run]) -> str:
    """The page of convex runs; the same runs give the same text.

    Args:
      runs: one or several, from `read_convex`.

    Raises:
      RunError: the runs do not fit into one plot.
    """
    # Matplotlib takes most of a second to import; only whoever draws pays for it.
    from jaxcomp.report.convex_curves import draw_runs
    from jaxcomp.report.svg import inline_svg

    first, several = runs[0], len(runs) > 1
    title = convex_title(first.config, first.environment) or first.name
    subtitle = started(first)
    if several:
        title = f"Convex runs: {', '.join(run.name for run in runs)}"
        subtitle = "suboptimality is the median over the seeds, at the last evaluation"
    return render(
        "convex.html",
        title=title,
        subtitle=subtitle,
        cards=[] if several else _cards(first),
        overview=[_overview(run) for run in runs] if several else [],
        plot=Drawing(inline_svg(draw_runs(runs), "suboptimality"), _CAPTION),
        runs=[
            {
                "of": f" of {run.name}" if several else "",
                "evaluations": _evaluations(run),
                "provenance": provenance(run),
            }
            for run in runs
        ],
    )


def _cards(run: Run) -> list[Card]:
    end, ratio = _last(run), compression(run)
    start, optimum = run.environment.get("start"), run.environment.get("optimum")
    middle = "one seed" if end["seeds"] == 1 else f"median of {end['seeds']} seeds"
    if isinstance(start, float) and isinstance(optimum, float):
        middle += f", {number_text(start - optimum)} at the start"
    sent = bytes_text(end["bytes_sent"])
    dense = f"uncompressed {bytes_text(end['bytes_sent'] * ratio)}, simulated"
    lowest, highest = number_text(end["lowest"]), number_text(end["highest"])
    return [
        Card("final suboptimality", number_text(end["suboptimality"]), middle),
        Card("suboptimality of the seeds", lowest, f"lowest; highest {highest}"),
        Card("of the worst worker", number_text(end["worst_suboptimality"]), "median"),
        Card(
            "consensus distance", number_text(end["consensus_distance"]), "at the end"
        ),
        Card("sent per worker in total", sent, dense),
        Card("compression", times_text(ratio), "uncompressed / sent"),
        Card("steps", number_text(end["step"]), f"epochs: {_rounded(end['epoch'])}"),
    ]


def _overview(run: Run) -> dict[str, str]:
    """The row of a run in the table of several."""
    end = _last(run)
    return {
        "run": run.name,
        "method": method_names(run.config, run.environment),
        "suboptimality": number_text(end["suboptimality"]),
        "lowest": number_text(end["lowest"]),
        "highest": number_text(end["highest"]),
        "worst worker": number_text(end["worst_suboptimality"]),
        "sent": bytes_text(end["bytes_sent"]),
        "ratio": times_text(compression(run)),
        "steps": number_text(end["step"]),
        "seeds": str(end["seeds"]),
        "workers": str(run.config.get("workers", "")),
        "problem": convex_problem(run.config),
    }


def _evaluations(run: Run) -> list[dict[str, str]]:
    found = evaluations(run)
    return [
        {head: text(found[column][i]) for column, head, text in _COLUMNS}
        for i in range(found["step"].size)
    ]


def _last(run: Run) -> dict[str, float]:
    """The last evaluation of a run."""
    return {name: values[-1] for name, values in evaluations(run).items()}
