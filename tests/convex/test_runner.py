"""Convex runs and their folders: end to end, interrupted, cut off, damaged."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcomp import CheckpointError
from jaxcomp.cli import train
from jaxcomp.convex import runner
from jaxcomp.convex import runner as record
from jaxcomp.convex.experiment import build
from jaxcomp.convex.runner import make_simulation
from jaxcomp.runs.open_run import locked
from jaxcomp.training import Interrupted
from tests.convex.small import arrays, assert_same_run, small, stop_at


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two seeds; copied by who changes it."""
    folder = tmp_path_factory.mktemp("finished")
    runner.run(small(seeds=2), folder)
    return folder


@pytest.fixture(scope="module")
def fresh():
    """What the state of such a run is like."""
    return make_simulation(build(small())).start()


def test_a_run_end_to_end(finished, capsys):
    assert train.run(small(seeds=2), str(finished)) == 0  # it has ended, and says how
    shown = capsys.readouterr().out
    rows = record.read_rows(finished / "metrics.csv")
    ends = [row.suboptimality for row in rows if row.step == 30]
    assert f"suboptimality  {np.median(ends):.3g} (2 seeds, " in shown
    # An all-reduce of 30 float32 in a ring of four is 180 B a step.
    saved = "1.2 kB would have left it, 4.5 times fewer than the 5.4 kB of exact"
    assert f"messages of 1.2 kB in 30 steps; {saved}" in shown
    steps = [10, 20, 30]
    assert [(r.seed, r.step) for r in rows] == [(s, t) for s in (0, 1) for t in steps]
    for row in rows:
        assert 0 < row.suboptimality < row.worst_suboptimality < 1
        assert row.consensus_distance > 0
        assert row.epoch == pytest.approx(row.step / 142)
        assert row.learning_rate == pytest.approx(100 / (row.step - 1 + 1000))
    assert rows[0].suboptimality != rows[3].suboptimality
    assert json.loads((finished / "config.json").read_text())["workers"] == 4
    assert json.loads((finished / "environment.json").read_text())["simulated"] is True


def test_an_interrupted_run_goes_on_to_the_bit(finished, tmp_path, monkeypatch, capsys):
    """At the fourth evaluation nothing is due to be saved but for the signal."""
    with monkeypatch.context() as patch:
        stop_at(patch, 4)
        assert train.run(small(seeds=2), str(tmp_path)) == 128 + 15
    assert "Go on with the same command" in capsys.readouterr().err
    assert len(record.read_rows(tmp_path / "metrics.csv")) == 4
    runner.run(small(seeds=2), tmp_path)
    assert "going on from step 10 of 30, seed 1" in capsys.readouterr().out
    assert_same_run(finished, tmp_path)


TURNS = {"mixer": "d_psgd", "compressor": "none", "topology": "exponential"}
MEMORY = {
    "mixer": "",
    "topology": "",
    "exchange": "gather",
    "compressor": "sign",
    "memory": "error_feedback",
}


@pytest.mark.parametrize("changes", [TURNS, MEMORY], ids=["turns", "memory"])
def test_all_of_the_state_is_saved(changes, tmp_path, monkeypatch):
    config = small(**changes, train_for="20 steps")
    runner.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        with pytest.raises(Interrupted, match="stopped at step 10, seed 0; saved in"):
            runner.run(config, tmp_path / "parts")
    runner.run(config, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    # The step's number is one for all workers: a mixer that takes turns then runs one
    # program a step, and not all of them to choose from.
    assert arrays(tmp_path / "parts")["crew.link.clock.step"].shape == ()


def test_rows_after_the_saved_state_are_written_again(finished, tmp_path):
    """A kill between two saves leaves rows that the state does not know."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    table = (tmp_path / "metrics.csv").read_bytes()
    (tmp_path / "metrics.csv").write_bytes(table + table.splitlines()[-1] + b"\r\n1,4")
    runner.run(small(seeds=2), tmp_path)
    assert (tmp_path / "metrics.csv").read_bytes() == table


def test_a_table_that_is_cut_off_anywhere_is_read_up_to_there(finished, tmp_path):
    rows = record.read_rows(finished / "metrics.csv")
    table = (finished / "metrics.csv").read_bytes()
    last = table.rindex(b"\n", 0, -1) + 1
    cut = tmp_path / "metrics.csv"
    for end in range(last, len(table)):
        cut.write_bytes(table[:end])
        found = record.read_rows(cut)
        assert found[: len(rows) - 1] == rows[:-1]
        # A number may end early and still be one.
        assert len(found) < len(rows) or end > table.rindex(b",")


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_state_does_not_count(damage, finished, fresh, tmp_path):
    content = bytearray((finished / "state.npz").read_bytes())
    if damage == "changed":
        content[content.index(arrays(finished)["crew.models"].tobytes())] ^= 1
    else:
        del content[len(content) // 2 if damage == "cut" else 0 :]
    file = tmp_path / "state.npz"
    file.write_bytes(bytes(content))
    with pytest.warns(RuntimeWarning, match="is damaged .*: the run starts again"):
        assert record.load_state(file, fresh) is None
    found = record.load_state(finished / "state.npz", fresh)
    assert found is not None
    assert found[1:] == (1, 30, 6)


def test_a_state_of_another_shape_does_not_count(finished, fresh):
    like = fresh._replace(models=fresh.models[:3])
    with pytest.warns(RuntimeWarning, match=r"crew.models is \(4, 30\), not \(3, 30\)"):
        assert record.load_state(finished / "state.npz", like) is None


def rewritten(finished: Path, file: Path, leave: str = "", **changed: object) -> Path:
    """The state of a finished run with other arrays, and with their checksum."""
    stored = {k: v for k, v in arrays(finished).items() if k not in ("sha256", leave)}
    stored |= {name: np.asarray(value) for name, value in changed.items()}
    np.savez(file, allow_pickle=False, sha256=record._digest(stored), **stored)
    return file


def test_a_state_says_its_format_and_holds_no_report(finished, fresh, tmp_path):
    stored = arrays(finished)
    assert stored["format"] == record.FORMAT
    assert not [name for name in stored if ".info" in name]
    wanted = record.load_state(finished / "state.npz", fresh)
    report = {"crew.link.info.value.gradient_error": np.ones(4, np.float32)}
    old = rewritten(finished, tmp_path / "old.npz", leave="format", **report)
    jax.tree.map(np.testing.assert_array_equal, record.load_state(old, fresh), wanted)
    later = rewritten(finished, tmp_path / "later.npz", format=record.FORMAT + 1)
    with pytest.raises(CheckpointError, match="by a later jaxcomp, in format 3"):
        record.load_state(later, fresh)


def test_rows_that_are_gone_start_the_run_again(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics.csv").unlink()
    runner.run(small(seeds=2), tmp_path)
    assert "lacks rows of its run, which starts again" in capsys.readouterr().out
    assert_same_run(finished, tmp_path)


def test_a_folder_belongs_to_one_config(finished, capsys):
    before = (finished / "metrics.csv").read_bytes()
    assert train.run(small(seeds=2, batch_size=8), str(finished)) == 2
    shown = capsys.readouterr().err
    assert "batch_size: the folder has 4, you ask for 8" in shown
    assert "Use another --workdir" in shown
    assert (finished / "metrics.csv").read_bytes() == before


def test_a_convex_run_has_nothing_to_evaluate_later(tmp_path, capsys):
    assert train.run(small(), str(tmp_path), evaluate="best") == 2
    assert "metrics.csv" in capsys.readouterr().err


def test_the_saved_state_of_a_convex_run_is_evaluated(finished, tmp_path, capsys):
    """As the run did at its end, and without touching it."""
    before = (finished / "metrics.csv").read_bytes()
    assert train.run(small(seeds=2), str(finished), evaluate="latest") == 0
    last = record.read_rows(finished / "metrics.csv")[-1]
    shown = f"seed 1, step 30: suboptimality {last.suboptimality:.3g}, worst "
    assert f"latest checkpoint, {shown}" in capsys.readouterr().out
    assert (finished / "metrics.csv").read_bytes() == before
    assert train.run(small(), str(tmp_path), evaluate="latest") == 2
    assert "holds no run" in capsys.readouterr().err
    assert train.run(small(seeds=3), str(finished), evaluate="latest") == 2
    assert "seeds: the folder has 2, you ask for 3" in capsys.readouterr().err


def test_a_convex_run_is_alone_in_its_folder(tmp_path, capsys):
    with locked(tmp_path):
        assert train.run(small(), str(tmp_path)) == 2
    assert "is held by process" in capsys.readouterr().err
