"""`make test-newest`: the list that it runs, the Python that it finds, and the pins."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = re.findall(
    r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()
)
SMOKE = (ROOT / "tests" / "smoke.txt").read_text().split()


@pytest.mark.parametrize("python", PYTHONS)
def test_every_version_is_pinned_once(python):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    here = Counter(
        pin.name
        for pin in pins
        if not pin.marker or pin.marker.evaluate({"python_version": python})
    )
    assert here == Counter({pin.name for pin in pins})


@pytest.mark.parametrize("test", SMOKE)
def test_the_smoke_tests_exist(test):
    """Where there is no newer Python nobody else would notice."""
    file, *name = test.split("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(name) <= functions
