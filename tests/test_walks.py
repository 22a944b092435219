"""The walks of docs/architecture.md lead through files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

import jaxcomp

PACKAGE = Path(jaxcomp.__file__).parent
MAP = PACKAGE.parent / "docs" / "architecture.md"
MOST_HOPS = 10


def walks() -> dict[str, list[tuple[str, str]]]:
    """The (file, function) of each hop, by the heading of the walk."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in MAP.read_text().split("\n### ")[1:]:
        hops = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", part, re.MULTILINE)
        if hops:
            found[part.splitlines()[0]] = hops
    return found


WALKS = walks()


def test_there_are_four():
    names = ["One step", "One gossip round", "One resume", "One report"]
    assert list(WALKS) == names


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_short_and_meets_no_file_twice(name):
    files = [file for file, _ in WALKS[name]]
    assert len(files) <= MOST_HOPS
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("name", WALKS)
def test_its_functions_are_where_it_says(name):
    for file, function in WALKS[name]:
        tree = ast.parse((PACKAGE / file).read_text())
        defined = {getattr(node, "name", None) for node in tree.body}
        assert function in defined, f"{file} has no {function}"
