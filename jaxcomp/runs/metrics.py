"""The columns of the tables of runs, each defined once."""

from collections.abc import Callable
from typing import NamedTuple

from jaxcomp.runs.table import Schema
from jaxcomp.runs.units import (
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)

__all__ = [
    "EPOCHS",
    "EVALUATIONS",
    "LAYERS",
    "METRICS",
    "PARTS",
    "STEPS",
    "Evaluation",
    "Metric",
]


class Metric(NamedTuple):
    """A figure of an epoch: a column of metrics.csv, and of the report's table.

    Figures of steps are means over the workers of all processes.
    """

    name: str
    heading: str = ""  # in the report; "" where it is not shown
    text: Callable[[float], str] = number_text
    of_step: str = ""  # the figure of steps that it sums up; "": known at the end
    over_steps: str = "mean"  # of the steps that have it; or "last", or "sum"


METRICS = (
    Metric("epoch", "epoch"),
    Metric("step", "step"),
    Metric("examples"),
    Metric("seconds", "time", seconds_text),
    Metric("learning_rate", "learning rate"),
    Metric("train_loss", "train loss", of_step="loss"),
    Metric("train_accuracy", "train accuracy", percent_text, "accuracy"),
    Metric("test_loss", "test loss"),
    Metric("test_accuracy", "test accuracy", percent_text),
    Metric("own_accuracy", "own accuracy", percent_text),
    Metric("worst_accuracy", "worst own accuracy", percent_text),
    Metric("wire_bytes_per_step", "message / step", bytes_text),
    Metric("dense_bytes_per_step"),
    Metric("bytes_left", "left a worker", bytes_text),  # since the start of the run
    Metric("exact_bytes_left"),  # likewise, with `exact`
    Metric("times_fewer", "ratio", times_text),  # exact_bytes_left / bytes_left
    Metric("simulated"),
    Metric("traced"),
    Metric("residual_norm", "residual norm", number_text, "residual_norm", "last"),
    Metric("residual_grows"),
    Metric("gradient_error", "gradient error", number_text, "gradient_error"),
    Metric("consensus_distance", "consensus distance"),
    Metric("distance", "distance from start"),  # of the evaluated parameters
    Metric("overflow", "overflow", number_text, "overflow"),
    Metric("overflowed_steps", "overflowed steps", number_text, "overflowed", "sum"),
    Metric("loss_scale", "loss scale", number_text, "loss_scale", "last"),
    Metric("skipped_steps", "skipped steps", number_text, "skipped", "sum"),
)
EPOCHS = Schema(tuple(metric.name for metric in METRICS), ("epoch", "step"))
STEPS = Schema(
    (
        "step",
        "epoch",
        "loss",
        "accuracy",
        "learning_rate",
        "data_seconds",
        "step_seconds",
        "wait_seconds",
        "images_per_second",
        "gradient_norm",
        "residual_norm",
        "gradient_error",
        "skipped",  # the share of the workers that left the step out
    ),
    ("step",),
)
# The parts of a step in breakdown.csv.
PARTS = ("data", "forward_backward", "compress", "communicate", "decode", "update")
LAYERS = Schema(
    (
        "epoch",
        "leaf",
        "elements",
        "gradient_norm",
        "error",  # |given - sent|^2 / |given|^2 of the leaf, the mean over workers
    ),
    ("epoch",),
    labels=("leaf",),
)


class Evaluation(NamedTuple):
    """A row of the metrics.csv of a convex run."""

    seed: int
    step: int
    epoch: float
    bytes_sent: int  # the messages of one worker since the start
    suboptimality: float  # f(mean of the workers' averages) - f*
    worst_suboptimality: float  # of one worker's average
    consensus_distance: float  # sqrt(mean over workers |x_i - mean|^2)
    learning_rate: float  # of the last step
    bytes_left: float  # what would have left a worker since the start
    exact_bytes_left: float  # likewise with `exact`


EVALUATIONS = Schema(Evaluation._fields, ("seed", "step"), digits=10)
