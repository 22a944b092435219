"""Sweeps of a trainer that takes no time: failures, kills, limits and the summary."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxcomp.cli import main, sweep
from jaxcomp.cli.config import load_config
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.lock import locked
from tests.launch.test_launch import is_alive, until
from tests.training.small import small_config
from tests.training.test_logistic_regression import linear_config

TRAINER = [sys.executable, str(Path(__file__).with_name("trainer.py"))]
CHECK = sweep._CHECK
FILE = """
from jaxcomp.cli.sweeps import Sweep, product


def get_sweep():
    grid = product(method={methods}, seed={seeds})
    return Sweep("{config}", [*grid, *{runs}], {{"train_for": "2 epochs"}})
"""
EXACT = {"exact": {"exchange": "exact", "memory": "none"}}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a sweep, and train it in no time."""
    monkeypatch.setattr(sweep, "_TRAIN", TRAINER)
    monkeypatch.setattr(sweep, "_CHECK", ("true",))
    monkeypatch.setattr(sweep, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(sweep, "write_comparison", compared)

    def write(seeds="[0, 1]", **others):
        parts = {"config": "configs/default.py", "runs": [], "methods": EXACT}
        file = tmp_path / "small.py"
        file.write_text(FILE.format(seeds=seeds, **{**parts, **others}))
        return str(file), f"--out={tmp_path / 'out'}"

    return write


def compared(folders, file, title="", note=None):
    file.write_text(f"{title}: {len(folders)} runs")
    return file


def rows(out):
    with open(out / "summary.csv", newline="") as file:
        return list(csv.DictReader(file))


def starts(out):
    files = (out / "runs").glob("*/starts.txt")
    return sorted(len(file.read_text().splitlines()) for file in files)


def test_each_run_runs_once_and_the_summary_has_all(write, tmp_path, capsys):
    both = EXACT | {"signs": {"compressor": "sign"}}
    file, out = write(methods=both)
    assert main(["sweep", file, out]) == 0
    printed = capsys.readouterr().out
    found = rows(tmp_path / "out")
    assert [row["method"] for row in found] == ["exact", "exact", "signs", "signs"]
    assert [row["seed"] for row in found] == ["0", "1", "0", "1"]
    assert [row["compressor"] for row in found][2:] == ["sign"] * 2
    assert {row["state"] for row in found} == {"finished"}
    best = [float(row["best_test_accuracy"]) for row in found]
    assert best == pytest.approx([0.6, 0.59, 0.6, 0.59])
    assert {row["best_epoch"] for row in found} == {"1"}
    assert float(found[0]["final_test_accuracy"]) == pytest.approx(0.59)
    assert float(found[0]["final_bytes_sent"]) == 5 * 100 + 5 * 50
    assert float(found[0]["final_times_fewer"]) == pytest.approx(12000 / 2250)
    assert found[0]["batch_size"] == "64"
    assert found[0]["train_for"] == "2 epochs"
    folder = tmp_path / "out" / "runs" / found[0]["run"]
    assert str(folder) in printed
    [again] = [line for line in printed.splitlines() if "the same again" in line]
    frozen = tmp_path / "out" / "configs" / f"{folder.name}.py"
    assert again.split()[-2:] == [f"--config={frozen}", f"--workdir=runs/{folder.name}"]
    plainly = json.loads(load_config(str(frozen)).to_json())
    assert found[0]["batch_size"] == str(plainly["batch_size"])
    assert plainly["policy"] == []
    assert (tmp_path / "out" / "comparison.html").read_text() == "small: 4 runs"
    assert "4 of 4" in printed
    noted = json.loads((folder / "environment.json").read_text())["sweep"]
    assert noted == {"labels": {"method": "exact"}, "keys": ["exchange", "memory"]}

    assert main(["sweep", *write("[0, 2]", methods=both)]) == 0, "it is another"
    assert starts(tmp_path / "out") == [1] * 6


def test_a_config_that_is_edited_meanwhile_changes_no_run(write, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(Path("configs/default.py").read_text())
    file, out = write("[6, 1]", config=own)
    assert main(["sweep", file, out]) == 0
    assert own.read_text() == "changed = True\n"
    found = rows(tmp_path / "out")
    assert {row["state"] for row in found} == {"finished"}
    for row in found:
        reached = 0.9 - int(row["seed"]) / 100 - abs(float(row["learning_rate"]) - 0.4)
        assert float(row["best_test_accuracy"]) == pytest.approx(reached)


def test_every_value_is_checked_before_the_first_run(
    write, tmp_path, monkeypatch, capsys
):
    """By a process of its own; the wrong run is the last one, and nothing is left."""
    monkeypatch.setattr(sweep, "_CHECK", CHECK)
    file, out = write("[0]", runs=[{"seed": 3, "learning_rate": -5}])
    assert main(["sweep", file, out]) == 2
    message = capsys.readouterr().err
    assert message.startswith("jaxcomp sweep: seed-3-learning-rate-5-")
    assert "learning_rate is a number of at least 0, not -5.0" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "best", "message"),
    [
        (small_config(), "test_acc", "Did you mean 'test_accuracy'"),
        (small_config(ema=0.9), "ema_accuracy", ""),
        (small_config(ema=0.9), "ema_acuracy", "Did you mean 'ema_accuracy'"),
        (small_config(compressor="topk"), "test_accuracy", "Did you mean 'top_k'"),
        (linear_config(), "test_suboptimality", ""),
        (linear_config(mixer="chocco"), "test_loss", "Did you mean 'choco'"),
    ],
)
def test_a_run_is_built_and_has_the_column(config, best, message, monkeypatch, capsys):
    given = json.dumps([best, [("name", json.loads(config.to_json()))]])
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert sweep.check_given() == (2 if message else 0)
    assert message in capsys.readouterr().out


def test_a_failure_is_reported_and_the_same_command_goes_on(write, tmp_path, capsys):
    words = write("[1, 7, 8]")
    assert main(["sweep", *words]) == 1
    printed = capsys.readouterr().out
    by_seed = {row["seed"]: row for row in rows(tmp_path / "out")}
    states = {seed: row["state"] for seed, row in by_seed.items()}
    assert states == {"1": "finished", "7": "failed", "8": "failed"}
    assert by_seed["7"]["error"] == "the loss is not finite"
    assert by_seed["8"]["error"] == "train.py: the loss is not finite"
    assert starts(tmp_path / "out") == [1] * 3
    assert "failed: exact, seed=7: the loss is not finite" in printed
    logs = [Path(word) for word in printed.split() if word.endswith(".log")]
    assert len(logs) == 2
    assert all(log.is_file() for log in logs)

    # Who crashed goes on; a run that has failed is not tried for ever.
    assert main(["sweep", *words]) == 1
    assert starts(tmp_path / "out") == [1, 1, 2]
    states = {row["seed"]: row["state"] for row in rows(tmp_path / "out")}
    assert states == {"1": "finished", "7": "failed", "8": "finished"}
    assert main(["sweep", *words, "--retry"]) == 1
    assert starts(tmp_path / "out") == [1, 2, 2]


def test_a_killed_sweep_leaves_no_process_and_goes_on(write, tmp_path):
    """SIGKILL of the sweep: its run ends with it, and is started again by the next."""
    file, out = write("[0, 9]")
    program = (
        f"from jaxcomp.cli import main, sweep; sweep._TRAIN = {TRAINER}; "
        f"main(['sweep', {file!r}, {out!r}, '--jobs=4'])"
    )
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    waiting = f"{tmp_path}/out/runs/*-seed-9-*/starts.txt"
    until(lambda: [*Path("/").glob(waiting[1:])])
    files = sorted(Path("/").glob(waiting[1:]))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    children = [int(file.read_text().split()[0]) for file in files]
    until(lambda: not any(map(is_alive, children)))
    (tmp_path / "out" / "again").touch()
    assert main(["sweep", file, out]) == 0
    assert {row["state"] for row in rows(tmp_path / "out")} == {"finished"}
    assert all(count <= 2 for count in starts(tmp_path / "out"))


def test_ctrl_c_lets_runs_save_and_says_how_to_go_on(write, tmp_path, capsys):
    file, out = write("[9]")
    log = tmp_path / "out" / "runs"
    timer = threading.Thread(
        target=lambda: (
            until(lambda: list(log.glob("*/starts.txt"))),
            time.sleep(0.2),
            os.kill(os.getpid(), signal.SIGINT),
        )
    )
    timer.start()
    assert main(["sweep", file, out]) == 128 + signal.SIGINT
    timer.join()
    assert "Go on with the same command." in capsys.readouterr().err
    (tmp_path / "out" / "again").touch()
    assert main(["sweep", file, out]) == 0


def test_two_sweeps_do_not_share_a_folder(write, tmp_path):
    file, out = write()
    (tmp_path / "out" / "runs").mkdir(parents=True)
    with locked(tmp_path / "out"):
        assert main(["sweep", file, out]) == RunError.exit_code


def test_the_folder_has_the_name_of_the_file(write, tmp_path, monkeypatch):
    file, _ = write("[0]")
    (tmp_path / "configs").symlink_to(Path.cwd() / "configs")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", file]) == main(["sweep", file]) == 0
    assert starts(tmp_path / "output" / "small") == [1]
