"""Faults that the tests have to notice: a name, a file, and a line that is wrong."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """One wrong line."""

    name: str
    file: str
    right: str  # occurs once in the file
    wrong: str
    near: str  # tests that are tried first; the whole suite follows if they pass


_TABLE = tomllib.loads(Path(__file__).with_name("faults.toml").read_text())
FAULTS = [Fault(**row) for row in _TABLE["fault"]]
