"""The figures of training runs, by name: what is drawn, and what it means."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.plot import Axis, Reference, Series

__all__ = [
    "ACROSS",
    "REGISTRY",
    "Curve",
    "Figure",
    "View",
    "judged_by",
    "over_all",
]

# What curves may be drawn over.
ACROSS = {
    "epoch": Axis("epoch", "count"),
    "step": Axis("step", "count"),
    "seconds": Axis("time of training, without compiling", "seconds"),
    "bytes": Axis("bytes that have left one worker", "bytes"),  # or what else
}


class Curve(NamedTuple):
    """A column of a table."""

    label: str  # in the figure of one run; "" where it is the only one
    column: str
    table: str = "metrics"  # or "steps"
    slot: int = 0  # its colour
    band: str = ""  # column to which a band reaches from the curve


def _no_end(series: Sequence[Series]) -> float:
    return float("inf")


def _twice_the_start(series: Sequence[Series]) -> float:
    """The loss of a run that diverged would flatten all others."""
    return 2.0 * max((float(one.y[0]) for one in series), default=np.inf)


def _four_medians(series: Sequence[Series]) -> float:
    """The first step compiles, and may take a thousand times longer than the others."""
    return 4.0 * max((float(np.median(one.y)) for one in series), default=np.inf)


class View(NamedTuple):
    """Some columns over one horizontal axis."""

    across: str  # a key of `ACROSS`
    y: Axis
    curves: Sequence[Curve]
    compared: str = ""  # the label of the curve that stands for a run among others
    references: Sequence[Reference] = ()
    # Where the vertical axis ends, although a curve may go on.
    most: Callable[[Sequence[Series]], float] = _no_end


class Figure(NamedTuple):
    """Views side by side."""

    title: str
    caption: str
    views: Sequence[View]
    mixed: str = ""  # added to the caption where workers have models of their own
    switch: str = ""  # as of `Plot`


def over_all(
    y: Axis,
    curves: Sequence[Curve],
    compared: str = "",
    most: Callable[[Sequence[Series]], float] = _no_end,
) -> list[View]:
    """The same curves over epochs, seconds and bytes."""
    names = ("epoch", "seconds", "bytes")
    return [View(name, y, curves, compared, most=most) for name in names]


_OF_MEAN = (
    "Each worker has a model of its own: test figures are those of the mean of the "
    "models."
)
_ERRORS = (Reference(0.0, "sending everything"), Reference(1.0, "sending nothing"))


def judged_by(name: str) -> Figure:
    """The figure of the measure of a task."""
    is_share = name == "accuracy"
    what = "Share of examples that were classified correctly: of" if is_share else "Of"
    return Figure(
        name.capitalize(),
        f"{what} the training batches, as they were logged, and of the test set.",
        over_all(
            Axis(name, "percent" if is_share else "number"),
            (
                Curve("train", name, "steps", 0),
                Curve("test", f"test_{name}", slot=1),
                Curve("own models", f"own_{name}", slot=2, band=f"worst_{name}"),
            ),
            "test",
        ),
        f"{_OF_MEAN} “Own models” is the mean of the workers' own models; its band "
        "reaches to the worst of them.",
    )


# In the order of the page. The names are those of PNG files, and ids in the page.
REGISTRY: dict[str, Figure] = {
    "accuracy": judged_by("accuracy"),
    "loss": Figure(
        "Loss",
        "Loss of the training batches as it was logged, and of the test set.",
        over_all(
            Axis("loss", "number"),
            (
                Curve("train", "loss", "steps", 0),
                Curve("test", "test_loss", slot=1),
            ),
            "train",
            _twice_the_start,
        ),
        _OF_MEAN,
        switch="logarithmic loss",
    ),
    "compression": Figure(
        "What compression saves and loses",
        "Gradient error: |sent − given|² / |given|², where “given” is the gradient "
        "plus what earlier steps did not send. 0 is sending everything, 1 is as much "
        "error as sending nothing. A value just below 1 is usual where few elements "
        "are sent: the memory keeps the rest for later steps. Its size is the residual "
        "norm, which levels off if the memory returns as much as it takes.",
        (
            View(
                "epoch",
                Axis("times fewer bytes than exact, so far", "times"),
                (Curve("", "times_fewer"),),
            ),
            View(
                "epoch",
                Axis("gradient error", "number"),
                (Curve("", "gradient_error", "steps", 1),),
                references=_ERRORS,
            ),
            View(
                "epoch",
                Axis("residual norm", "number"),
                (Curve("", "residual_norm", "steps", 2),),
            ),
        ),
        "Where workers mix their models, “given” is what the others do not know of a "
        "worker's model.",
    ),
    "consensus": Figure(
        "Agreement of the workers",
        "Consensus distance: how far the workers' models are from their mean, as the "
        "root of the mean squared distance at the end of each epoch.",
        over_all(
            Axis("consensus distance", "number"), (Curve("", "consensus_distance"),)
        ),
        switch="logarithmic distance",
    ),
    "time": Figure(
        "Speed and learning rate",
        "Computing, preparing data, and waiting for the figures, as they were logged. "
        "The first step also compiles.",
        (
            View(
                "step",
                Axis("time of a step", "seconds"),
                (
                    Curve("computing", "step_seconds", "steps", 0),
                    Curve("data", "data_seconds", "steps", 4),
                    Curve("wait", "wait_seconds", "steps", 5),
                ),
                "computing",
                most=_four_medians,
            ),
            View(
                "step",
                Axis("examples per second", "count"),
                (Curve("", "images_per_second", "steps", 2),),
            ),
            View(
                "epoch",
                Axis("learning rate", "number"),
                (Curve("", "learning_rate", "steps", 3),),
            ),
        ),
    ),
}
