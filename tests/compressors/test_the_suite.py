"""The suite itself: one new file with a false promise makes it fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Two methods a newcomer might add. One of them says "unbiased" and is 2 % short.
NEW_FILE = """
from jaxcomp import compressors
from jaxcomp.compressors.qsgd import qsgd


def honest():
    return qsgd(levels=7)._replace(name="honest")


def liar():
    true = qsgd(levels=7)

    def decompress(payload, spec):
        return true.decompress(payload, spec) * 0.98

    return true._replace(name="liar", decompress=decompress)


compressors.REGISTRY.update(honest=honest, liar=liar)
"""


@pytest.mark.slow
def test_a_biased_method_that_says_unbiased_fails(tmp_path: Path) -> None:
    (tmp_path / "newcomer.py").write_text(NEW_FILE)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(tmp_path), str(root)])
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "newcomer"),
            *("-p", "no:cacheprovider", "-p", "no:xdist"),
            *("tests/compressors/test_conformance.py", "-k"),
            "test_unbiased and (honest or liar) and not scale",
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    failed = re.findall(r"^FAILED \S*::(\S+)", run.stdout, re.MULTILINE)
    assert failed == ["test_unbiased[liar]"], run.stdout + run.stderr
    assert "1 failed, 1 passed" in run.stdout
