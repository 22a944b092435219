"""The headline numbers and the table of evaluations of a convex run."""

from jaxcomp.report.evaluations import joined
from jaxcomp.report.page import Card
from jaxcomp.report.run_folder import Run
from jaxcomp.report.units import rounded
from jaxcomp.runs.units import bytes_text, number_text, times_fewer, times_text

__all__ = ["convex_cards", "evaluation_rows"]

# Columns of the table of evaluations: column of `joined`, heading, text.
_COLUMNS = (
    ("epoch", "epoch", rounded),
    ("step", "step", number_text),
    ("seeds", "seeds", str),
    ("bytes_sent", "messages", bytes_text),
    ("bytes_left", "left a worker", bytes_text),
    ("learning_rate", "learning rate", number_text),
    ("suboptimality", "suboptimality", number_text),
    ("suboptimality_low", "lowest", number_text),
    ("suboptimality_high", "highest", number_text),
    ("worst_suboptimality", "worst worker", number_text),
    ("consensus_distance", "consensus distance", number_text),
)


def convex_cards(run: Run) -> list[Card]:
    """The cards of a convex run, of its last evaluation."""
    end = {name: values[-1] for name, values in joined([run.metrics]).items()}
    left, exact = end["bytes_left"], end["exact_bytes_left"]
    start, optimum = run.environment.get("start"), run.environment.get("optimum")
    middle = "one seed" if end["seeds"] == 1 else f"median of {end['seeds']} seeds"
    if isinstance(start, float) and isinstance(optimum, float):
        middle += f", {number_text(start - optimum)} at the start"
    sent = f"messages of {bytes_text(end['bytes_sent'])}, simulated"
    saved = f"exact / this run; with exact {bytes_text(exact)}"
    lowest, highest = (
        number_text(end[f"suboptimality_{side}"]) for side in ("low", "high")
    )
    apart = number_text(end["consensus_distance"])
    return [
        Card("final suboptimality", number_text(end["suboptimality"]), middle),
        Card("suboptimality of the seeds", lowest, f"lowest; highest {highest}"),
        Card("of the worst worker", number_text(end["worst_suboptimality"]), "median"),
        Card("consensus distance", apart, "at the end"),
        Card("left a worker in total", bytes_text(left), sent),
        Card("bytes saved", times_text(times_fewer(exact, left)), saved),
        Card("steps", number_text(end["step"]), f"epochs: {rounded(end['epoch'])}"),
    ]


def evaluation_rows(run: Run) -> list[dict[str, str]]:
    """The table of evaluations, over the seeds."""
    found = joined([run.metrics])
    return [
        {head: text(found[column][i]) for column, head, text in _COLUMNS}
        for i in range(found["step"].size)
    ]
