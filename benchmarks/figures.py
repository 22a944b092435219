"""The figures of README.md and docs, written from docs/measured.

    python -m benchmarks.figures            # names those that differ
    python -m benchmarks.figures --write    # writes them anew

A figure stands between two comments that no reader sees. The first one says where its
value is, `=FILE:ROW:COLUMN`, or a quotient or product of such cells and of numbers:

    <!--=runs:lstm:score-->8.40<!--/-->

The row is the text of the first column, without its spaces; `;COLUMN=VALUE` behind it
narrows the choice, and `min` and `max` are the least and the largest of the column. The
figure keeps the digits and the unit that it has in the text. A whole table stands
between `<!--table:NAME-->` and `<!--/table-->`; benchmarks/figure_tables.py makes it.
Configs say how many "times fewer bytes" they send: that of their row of runs.csv.
"""

import argparse
import csv
import difflib
import functools
import math
import re
from pathlib import Path

from benchmarks.figure_tables import TABLES

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))

_FIGURE = re.compile(r"<!--=([^>]+)-->(.*?)<!--/-->")
_TABLE = re.compile(r"<!--table:(\w+)-->\n(?:.*?\n)??<!--/table-->", re.DOTALL)
_SHOWN = re.compile(r"(-?[\d,]+(?:\.(\d+))?)(e-?\d+)?( ?[A-Za-zµ%]+)?")
_FEWER = re.compile(r"[\d.]+(?=\s+times\s+fewer\s+bytes)")
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write them anew")
    write = parser.parse_args(arguments).write
    for page in (*PAGES, *CONFIGS):
        text = page.read_text()
        new = in_config(page) if page in CONFIGS else rewritten(text)
        changes = difflib.unified_diff(
            text.splitlines(),
            new.splitlines(),
            page.name,
            "as measured",
            n=0,
            lineterm="",
        )
        print(*changes, sep="\n", end="")
        if write and new != text:
            page.write_text(new)


def rewritten(text: str) -> str:
    """A page with all of its figures as the data have them.

    Example:
      >>> rewritten("<!--=runs:lstm:steps/2340-->7.0<!--/--> times")
      '<!--=runs:lstm:steps/2340-->1.0<!--/--> times'
    """

    def figure(found: re.Match[str]) -> str:
        return f"<!--={found[1]}-->{_as_shown(_value(found[1]), found[2])}<!--/-->"

    def table(found: re.Match[str]) -> str:
        lines = "\n".join(TABLES[found[1]]())
        return f"<!--table:{found[1]}-->\n{lines}\n<!--/table-->"

    return _FIGURE.sub(figure, _TABLE.sub(table, text))


def in_config(file: Path) -> str:
    """A config whose first lines say what its run of runs.csv gives."""

    def figure(found: re.Match[str]) -> str:
        return _as_shown(
            cell("runs", f"*;config={file.stem};settings=", "fewer"), found[0]
        )

    return _FEWER.sub(figure, file.read_text())


def bare(text: str) -> str:
    """A page without what this module writes, programs, code and links."""
    for pattern, left in (
        (_TABLE, ""),
        (_FIGURE, "#"),
        (re.compile(r"^```python.*?^```", re.DOTALL | re.MULTILINE), ""),
        (re.compile(r"`[^`\n]*`"), "`"),
        (re.compile(r"\]\([^)\s]*\)"), "]"),
    ):
        text = pattern.sub(left, text)
    return text


def cell(file: str, row: str, column: str) -> float:
    """The value of one cell of a table of docs/measured.

    Example:
      >>> cell("runs", "lstm", "workers")
      4.0
    """
    name, *narrower = _plain(row).split(";")
    wanted = dict(part.split("=", 1) for part in narrower)
    rows = [
        each
        for each in _rows(file)
        if name in ("min", "max", "*", _plain(next(iter(each.values()))))
        and all(_plain(each[key]) == value for key, value in wanted.items())
    ]
    values = [float(each[column]) for each in rows if each[column]]
    if name in ("min", "max") and values:
        return min(values) if name == "min" else max(values)
    if len(values) != 1:
        raise ValueError(f"{file}.csv has {len(values)} rows {row!r}, not one")
    return values[0]


def _value(expression: str) -> float:
    """Products and quotients of cells and numbers, from left to right."""
    first, *others = re.split(r"(?=[*/])", expression)
    value = _term(first)
    for other in others:
        term = _term(other[1:])
        value = value * term if other[0] == "*" else value / term
    return value


def _term(text: str) -> float:
    if ":" not in text:
        return float(text)
    file, _, rest = text.partition(":")
    row, _, column = rest.rpartition(":")
    return cell(file, row, column)


@functools.cache
def _rows(file: str) -> list[dict[str, str]]:
    with open(MEASURED / f"{file}.csv", newline="") as source:
        return list(csv.DictReader(source))


def _plain(text: str) -> str:
    return text.replace(" ", "")


def _as_shown(value: float, shown: str) -> str:
    """A value with the digits and the unit of a text.

    Example:
      >>> _as_shown(1234567.0, "9.90 MB"), _as_shown(1234.5, "7"), _as_shown(0.5, "1e2")
      ('1.23 MB', '1,234', '5e-1')
    """
    found = _SHOWN.fullmatch(shown)
    if not found:
        raise ValueError(f"{shown!r} is no figure, such as 97.8 %, 1.30 MB or 40")
    digits, unit = len(found[2] or ""), found[4] or ""
    value /= _UNITS.get(unit.strip(), 1)
    if not found[3]:
        return f"{value:,.{digits}f}{unit}"
    power = math.floor(math.log10(value))
    return f"{value / 10.0**power:.{digits}f}e{power}{unit}"


if __name__ == "__main__":
    main()
