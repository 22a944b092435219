"""The folder of a run: whose it is, what may differ, and what it must not be."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from typing import IO

import pytest

from jaxcomp.core.errors import RunFailed, UserError
from jaxcomp.parallel.agreement import PeerFailed
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.lock import locked
from jaxcomp.runs.open_run import open_run

CONFIG = {"seed": 0, "rate": 0.1, "nothing": ""}


def opened(folder, config=CONFIG):
    """Open and leave a run."""
    with open_run(folder, config, {"method": "x"}, total=1) as frame:
        return frame.folder


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_failure_is_noted_until_the_run_is_tried_again(tmp_path):
    path = tmp_path / "environment.json"

    def fail():
        with open_run(tmp_path, CONFIG, {"method": "x"}, total=1):
            assert "failed" not in json.loads(path.read_text())
            raise RunFailed("step 3 is too large")

    for _ in range(2):
        with pytest.raises(RunFailed, match="too large"):
            fail()
        assert json.loads(path.read_text())["failed"] == "step 3 is too large"
    opened(tmp_path)
    assert "failed" not in json.loads(path.read_text())


# --- Two processes ------------------------------------------------------------------


def test_a_folder_is_held_by_one_and_the_other_is_told_by_whom(tmp_path):
    held = rf"is held by process {os.getpid()} on \S+ since 20.*--workdir"
    with open_run(tmp_path, CONFIG, {}, total=1), pytest.raises(RunError, match=held):
        opened(tmp_path)
    opened(tmp_path)


def test_a_lock_dies_with_its_process(tmp_path):
    """kill -9 leaves the file, and nobody waits for it."""
    program = (
        "import sys, time; from pathlib import Path; from jaxcomp.runs.lock import "
        "locked\nwith locked(Path(sys.argv[1])): print('held', flush=True); "
        "time.sleep(100)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"held by process {other.pid} on "):
            opened(tmp_path)
        other.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        pass


def test_a_lock_that_was_removed_is_taken_again_or_the_run_ends(tmp_path):
    with open_run(tmp_path, CONFIG, {}, total=1) as frame:
        (tmp_path / ".lock").unlink()
        frame.secure()
        with pytest.raises(RunError, match=f"held by process {os.getpid()}"):
            opened(tmp_path)
        (tmp_path / ".lock").unlink()
        lost = r"\.lock was removed while this run held it: .* is held by process"
        with locked(tmp_path), pytest.raises(RunError, match=lost):
            frame.secure()


def test_processes_started_together_do_not_train_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(UserError, match="SLURM_NTASKS=4 says that 4 processes"):
        opened(tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- What is no folder for a run ----------------------------------------------------


@pytest.mark.parametrize(
    ("left", "workdir", "message"),
    [
        ("file", "file", "file is a file, and a run needs a folder"),
        ("file", "file/run", "file is a file, and a run needs a folder"),
        ("file", "file/a/run", "file is a file, and a run needs a folder"),
        ("methods.md", "", r"other things than a run, such as methods\.md"),
        ("metrics.csv", "", r"holds metrics\.csv of a run, but not its config"),
        ("checkpoints", "", "holds checkpoints of a run, but not its config"),
    ],
)
def test_a_folder_of_other_things_stays_as_it_is(tmp_path, left, workdir, message):
    (tmp_path / left).write_text("mine")
    with pytest.raises(RunError, match=message):
        opened(tmp_path / workdir)
    assert contents(tmp_path) == {left: b"mine"}


def test_what_a_run_or_its_shell_leaves_is_no_other_thing(tmp_path):
    for name in ("train.log", "slurm-12.out", "environment.json", ".hidden"):
        (tmp_path / name).write_text("")
    opened(tmp_path)


# --- Which config -------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]", "\0"])
def test_a_damaged_config_is_one_message_and_stays(tmp_path, text):
    opened(tmp_path)
    (tmp_path / "config.json").write_text(text)
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"config\.json is empty or damaged: put it"):
        opened(tmp_path)
    after = contents(tmp_path)
    assert after["config.json"] == before["config.json"]
    assert after["environment.json"] == before["environment.json"]


def test_a_difference_is_named_and_what_may_change_may(tmp_path):
    folder = opened(tmp_path, {**CONFIG, "log_every": 10})
    with pytest.raises(RunError, match="rate: the folder has 0.1, you ask for 0.2"):
        opened(tmp_path, {**CONFIG, "log_every": 10, "rate": 0.2})
    opened(tmp_path, {**CONFIG, "log_every": 20})
    assert json.loads((folder / "config.json").read_text())["log_every"] == 20


# --- A disk that is full ------------------------------------------------------------


def write_into(folder, target):
    """A run that writes more than fits."""
    with open_run(folder, CONFIG, {}, total=1), open(target, "w") as file:
        file.write("more than fits")


def test_a_full_disk_is_one_message(tmp_path):
    opened(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="No space left on device .*Make room"):
        write_into(tmp_path, "/dev/full")
    after = contents(tmp_path)
    assert before.keys() == after.keys()
    assert before["config.json"] == after["config.json"]


def full() -> IO[str]:
    return open("/dev/full", "w")


def unread() -> IO[str]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize(
    ("stream", "why"), [(full, errno.ENOSPC), (unread, errno.EPIPE)]
)
def test_lost_output_is_noted_and_ends_no_run(stream, why, tmp_path, monkeypatch):
    """Also not as a full folder would."""
    with contextlib.suppress(OSError), stream() as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        opened(tmp_path)
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts["output_lost"] == f"[Errno {why}] {os.strerror(why)}"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_of_another_process_is_no_reason_to_try_again(number, tmp_path):
    """They hear of it as text; exit code 2 is one that no restart follows."""
    told = PeerFailed(f"another process failed: OSError: {os.strerror(number)}")
    refused = pytest.raises(RunError, match=os.strerror(number))
    with refused as raised, open_run(tmp_path, CONFIG, {}, total=1):
        raise told
    assert (told.exit_code, raised.value.exit_code) == (1, 2)


def test_other_errors_keep_their_traceback(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_into(tmp_path, tmp_path / "nowhere" / "file")
