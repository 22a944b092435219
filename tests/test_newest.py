"""`make test-newest`: the list that it runs, the Python that it finds, and the pins."""

import ast
import re
import subprocess
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


def newest(tmp_path, *versions):
    """What is found where the path has nothing and pyenv these versions."""
    for version in versions:
        folder = tmp_path / "versions" / version / "bin"
        folder.mkdir(parents=True)
        python = folder / "python"
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
    return subprocess.run(
        ["/bin/bash", ROOT / ".ci" / "newest-python"],
        env={"PATH": "", "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["3.11.7", "3.12.1"], "3.12.1"),
        (["3.12.1", "3.13.0"], "3.13.0"),
    ],
)
def test_the_newest_python_is_found(tmp_path, versions, expected):
    assert newest(tmp_path, *versions).stdout.split() == [expected]


def test_where_there_is_none_it_says_so(tmp_path):
    done = newest(tmp_path, "3.11.7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no Python 3.12 or 3.13" in done.stderr
