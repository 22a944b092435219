"""Commands whose reader leaves before they have ended."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("words", [["--list"], ["ring", "64"]])
def test_a_reader_that_leaves_is_no_error(words):
    command = [sys.executable, "-m", "jaxcomp", "topology", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
