"""Runs that cannot hurt themselves: what is lost, left, skipped or asked wrongly."""

import csv
import errno
import os
import shutil

import pytest

from jaxcomp import training
from jaxcomp.cli import train
from jaxcomp.core import files
from jaxcomp.training.checkpoints import step_of
from tests.training.small import (
    NAN_WHERE_BLACK,
    assert_same_state,
    rows,
    small_config,
    stop_at,
)
from tests.training.test_loop import poison


@pytest.fixture(scope="module")
def synced():
    """For each checkpoint, the rows until its step that fsync had not made last."""
    return []


@pytest.fixture(scope="module")
def finished(tmp_path_factory, synced):
    """The folder of a whole run; copied by who changes it."""
    folder = tmp_path_factory.mktemp("finished")
    lasting, fsync, write = {}, os.fsync, files.write_manifest

    def watched(descriptor):
        fsync(descriptor)
        found = os.fstat(descriptor)
        lasting[found.st_ino] = found.st_size

    def written(kept, *args):
        lost = []
        for path in folder.glob("*.csv"):
            safe = path.read_text()[: lasting.get(path.stat().st_ino, 0)]
            shown = {row["step"] for row in csv.DictReader(safe.splitlines())}
            lost += [row["step"] for row in rows(path) if row["step"] not in shown]
        synced.append([step for step in lost if int(step) <= step_of(kept)])
        assert folder.stat().st_ino in lasting
        write(kept, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", watched)
        patch.setattr(files, "write_manifest", written)
        return training.train_and_evaluate(small_config(), folder)


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.filterwarnings("ignore:skipping damaged checkpoint")
def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(copied, capsys):
    for checkpoint in (copied / "checkpoints").glob("step_*"):
        (checkpoint / "position.json").write_text("{}")
    kept = contents(copied / "checkpoints")
    assert train.run(small_config(), str(copied)) == 1
    message = capsys.readouterr().err
    assert "no last checkpoint in" in message
    assert "step_00000022, step_00000011" in message
    assert "to start over" in message
    assert contents(copied / "checkpoints") == kept
    assert len(rows(copied / "metrics.csv")) == 2


@pytest.mark.filterwarnings("ignore:skipping damaged checkpoint")
def test_what_somebody_left_beside_the_checkpoints_stays(copied, finished):
    left = copied / "checkpoints" / "step_3.bak"
    left.mkdir()
    (left / "mine").write_text("")
    shutil.rmtree(copied / "checkpoints" / "step_00000022" / "arrays")
    result = training.train_and_evaluate(small_config(), copied)
    assert_same_state(result.state, finished.state)
    assert (left / "mine").exists()


def test_a_longer_run_goes_on_and_a_shorter_one_is_refused(copied):
    with pytest.raises(
        ValueError, match=r"at step 22 already, and train_for ends it at"
    ):
        training.train_and_evaluate(small_config(train_for="11 steps"), copied)
    training.train_and_evaluate(small_config(train_for="23 steps"), copied)
    assert [row["step"] for row in rows(copied / "metrics.csv")] == ["11", "22", "23"]


def test_tables_last_through_a_power_cut_before_the_checkpoint_does(finished, synced):
    assert len(rows(finished.folder / "steps.csv")) == 5
    assert synced == [[], []]


def test_rows_that_are_lost_are_named_and_the_run_goes_on(copied, capsys):
    """As after a power cut, which could leave a checkpoint and not the rows."""
    for name in ("metrics.csv", "steps.csv"):
        lines = (copied / name).read_text().splitlines(keepends=True)
        (copied / name).write_text("".join(lines[:2]))
    training.train_and_evaluate(small_config(), copied)
    found = [li for li in capsys.readouterr().out.splitlines() if "WARNING" in li]
    assert found == [
        "WARNING: metrics.csv lacks the rows of steps 12 to 22, which are lost",
        "WARNING: steps.csv lacks the rows of steps 5 to 20, which are lost",
    ]


def test_a_page_that_finds_no_room_is_told(copied, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("jaxcomp.report.run_page.write_atomically", full)
    assert train.run(small_config(), str(copied)) == 1
    said = "the run has ended, but its page cannot be written: No space left on device"
    assert said in capsys.readouterr().err


def test_checkpoints_of_another_config_are_refused(copied, capsys):
    """Of the same shapes: somebody has copied them, or has changed the config."""
    path = copied / "config.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    for which in (None, "best"):
        assert train.run(small_config(seed=7), str(copied), which) == 2
        message = capsys.readouterr().err
        assert "step_00000022 holds a run with another config:" in message
        assert "seed: the folder has 0, you ask for 7" in message


def test_an_interrupted_run_has_a_report(tmp_path, monkeypatch, capsys):
    stop_at(monkeypatch, 17)
    assert train.run(small_config(), str(tmp_path)) == 128 + 15
    assert (tmp_path / "report.html").exists()
    *_, page, last = capsys.readouterr().err.splitlines()
    assert "report so far: " in page
    assert last == "Go on with the same command."


def test_skipped_steps_are_counted_everywhere(tmp_path, monkeypatch, capsys):
    poison(monkeypatch, 6)
    config = small_config(nonfinite="skip", log_every=1, augment=NAN_WHERE_BLACK)
    assert train.run(config, str(tmp_path)) == 0
    shown = capsys.readouterr().out
    [epoch] = [line for line in shown.splitlines() if line.endswith("1 steps skipped")]
    assert epoch.startswith("epoch   1/2")
    assert "skipped        1 of 22 steps, which were not finite" in shown
    found = rows(tmp_path / "metrics.csv")
    assert [row["skipped_steps"] for row in found] == ["1", "0"]
    assert [float(row["train_loss"]) > 0 for row in found] == [True, True]
    skipped = [
        row["step"] for row in rows(tmp_path / "steps.csv") if row["skipped"] > "0"
    ]
    assert skipped == ["7"]
    # The time of a skipped step taught nothing.
    timed = list(csv.DictReader((tmp_path / "steps.csv").read_text().splitlines()))
    took = {
        row["step"]: sum(float(row[f"{p}_seconds"]) for p in ("data", "step", "wait"))
        for row in timed
    }
    seconds = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))[
        -1
    ]["seconds"]
    assert float(seconds) == pytest.approx(sum(took.values()) - took["7"], rel=1e-4)
    page = (tmp_path / "report.html").read_text()
    assert 'role="alert">From epoch 1 on, steps were left out' in page


def test_a_run_that_skips_every_step_has_failed(tmp_path, monkeypatch, capsys):
    poison(monkeypatch, *range(22))
    for _ in range(2):  # it has not learned anything by asking again
        config = small_config(nonfinite="skip", augment=NAN_WHERE_BLACK)
        assert train.run(config, str(tmp_path)) == 1
        assert "not one of 22 steps was finite" in capsys.readouterr().err
