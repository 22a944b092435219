"""Rows of any NamedTuple as text in columns."""

from collections.abc import Sequence
from typing import Any

from jaxcomp.errors import UserError

__all__ = ["table"]


def table(rows: Sequence[Any], columns: Sequence[str] | None = None) -> str:
    """Rows as lines of text, numbers with three digits.

    Args:
      rows: NamedTuples of one type.
      columns: the fields to show, by default all.

    Example:
      >>> from typing import NamedTuple
      >>> class Row(NamedTuple):
      ...     name: str
      ...     error: float | None
      >>> print(table([Row("sign", 0.36338), Row("none", None)]))
      name  error
      sign  0.363
      none      -
    """
    if not rows:
        raise UserError("a table needs at least one row")
    fields = rows[0]._fields
    shown = list(columns or fields)
    for name in shown:
        if name not in fields:
            raise UserError(f"unknown column {name!r}. Valid: {', '.join(fields)}")
    cells = [shown, *([_text(getattr(row, name)) for name in shown] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    is_text = [isinstance(getattr(rows[0], name), str) for name in shown]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        ).rstrip()
        for line in cells
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
