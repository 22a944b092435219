"""Commands whose reader leaves before they have ended."""

import subprocess
import sys

import pytest

TOPOLOGY = ["-m", "jaxcomp", "topology"]


@pytest.mark.parametrize(
    "words",
    [
        [*TOPOLOGY, "--list"],
        [*TOPOLOGY, "ring", "64"],
        [*TOPOLOGY, "--help"],
        ["-m", "jaxcomp", "list", "compressors"],
        ["train.py", "--help"],
    ],
)
def test_a_reader_that_leaves_is_no_error(words):
    command = [sys.executable, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    # argparse ends by itself where it cannot write its help.
    assert process.returncode == (0 if "--help" in words else 141)
