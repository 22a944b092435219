"""The tables of a report as text."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.report.run_folder import Table
from jaxcomp.report.units import (
    MISSING,
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)


class Column(NamedTuple):
    """A column of the table of epochs.

    Attributes:
        name: Name in `metrics.csv`.
        head: What the table calls it.
        text: Writes one value.
    """

    name: str
    head: str
    text: Callable[[float], str]


COLUMNS = (
    Column("epoch", "epoch", number_text),
    Column("step", "step", number_text),
    Column("seconds", "time", seconds_text),
    Column("learning_rate", "learning rate", number_text),
    Column("train_loss", "train loss", number_text),
    Column("train_accuracy", "train accuracy", percent_text),
    Column("test_loss", "test loss", number_text),
    Column("test_accuracy", "test accuracy", percent_text),
    Column("own_accuracy", "own accuracy", percent_text),
    Column("worst_accuracy", "worst own accuracy", percent_text),
    Column("wire_bytes_per_step", "sent / step", bytes_text),
    Column("compression_ratio", "ratio", times_text),
    Column("residual_norm", "residual norm", number_text),
    Column("gradient_error", "gradient error", number_text),
    Column("consensus_distance", "consensus distance", number_text),
)
MEAN_MODEL = ("test_loss", "test_accuracy")


def metrics_table(
    metrics: Table, mixed: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Writes the table of epochs.

    Args:
        metrics: Columns of `metrics.csv`.
        mixed: Whether the workers have models of their own, so that the mean model is
            the one that was tested.

    Returns:
        Heads and rows. Columns that the run did not record are left out.
    """
    columns = [c for c in COLUMNS if not np.all(np.isnan(metrics[c.name]))]
    heads = [
        f"{c.head} of the mean model" if mixed and c.name in MEAN_MODEL else c.head
        for c in columns
    ]
    rows = range(len(metrics["epoch"]))
    cells = [[c.text(metrics[c.name][i]) for c in columns] for i in rows]
    return heads, cells


def flatten(content: dict[str, Any]) -> dict[str, str]:
    """Writes a nested dict as one level of dotted names and texts.

    Args:
        content: The dict, as read from a JSON file.

    Returns:
        Name to text.

    >>> flatten({"seed": 0, "optimizer": {"name": "sgd"}, "devices": ["a", "b"]})
    {'seed': '0', 'optimizer.name': 'sgd', 'devices': 'a, b'}
    """
    flat = {}
    for name, value in content.items():
        if isinstance(value, dict) and value:
            inner = flatten(value)
            flat |= {f"{name}.{key}": text for key, text in inner.items()}
        else:
            flat[name] = _value_text(value)
    return flat


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return MISSING
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
