"""The tables of a report as text."""

import json
from typing import Any

import numpy as np

from jaxcomp.runs.metrics import METRICS
from jaxcomp.runs.table import Table
from jaxcomp.runs.units import MISSING

COLUMNS = [metric for metric in METRICS if metric.heading]
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
        f"{c.heading} of the mean model"
        if mixed and c.name in MEAN_MODEL
        else c.heading
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
