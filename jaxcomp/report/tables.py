"""The tables of a report as HTML."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from jaxcomp.runs.metrics import METRICS
from jaxcomp.runs.table import Table
from jaxcomp.runs.units import MISSING

COLUMNS = [metric for metric in METRICS if metric.heading]
MEAN_MODEL = ("test_loss", "test_accuracy")


def metrics_table(metrics: Table, mixed: bool = False) -> str:
    """Writes the table of epochs.

    Args:
        metrics: Columns of `metrics.csv`.
        mixed: Whether the workers have models of their own, so that the mean model is
            the one that was tested.

    Returns:
        HTML. Columns that the run did not record are left out.
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
    return numbers_table(heads, cells)


def numbers_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Writes a table with one column per quantity.

    Args:
        heads: Names of the columns.
        rows: The cells of each row, as text.

    Returns:
        HTML.

    >>> print(numbers_table(["step"], [["10"]]))
    <div class="scroll" tabindex="0">
    <table class="numbers">
    <thead><tr><th scope="col">step</th></tr></thead>
    <tbody>
    <tr><td>10</td></tr>
    </tbody>
    </table>
    </div>
    """
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    lines = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0">\n<table class="numbers">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )


def pairs_table(content: dict[str, Any], if_empty: str) -> str:
    """Writes a nested dict as a table of names and values.

    Args:
        content: The dict, as read from a JSON file.
        if_empty: What to say if there is nothing in it.

    Returns:
        HTML.

    >>> print(pairs_table({"model": {"name": "<b>"}}, "no config"))
    <div class="scroll" tabindex="0">
    <table class="pairs">
    <tr><th scope="row">model.name</th><td>&lt;b&gt;</td></tr>
    </table>
    </div>
    """
    if not content:
        return f'<p class="soft">{escape(if_empty)}</p>'
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in flatten(content).items()
    )
    return (
        f'<div class="scroll" tabindex="0">\n<table class="pairs">\n{rows}\n'
        f"</table>\n</div>"
    )


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
