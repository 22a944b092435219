"""Commands whose output cannot be written: they end, and their exit code says so."""

import subprocess
import sys

import pytest

JAXCOMP = ["-m", "jaxcomp"]


@pytest.mark.parametrize(
    "words",
    [[*JAXCOMP, "--help"], [*JAXCOMP, "list", "configs"], ["train.py", "--help"]],
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
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 1, "the output is not whole: [Errno 28] No space left"),
        (">/dev/full 2>&1", 1, ""),
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
    ],
)
def test_a_full_disk_is_told_and_nobody_asks_for_a_closed_stream(
    redirection, code, said
):
    shell = ["sh", "-c", f'"$@" {redirection}', "sh"]
    command = ["-m", "jaxcomp", "launch", "-n", "1", "--", "echo", "a line"]
    done = subprocess.run([*shell, sys.executable, *command], capture_output=True)
    assert done.returncode == code
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
