"""Reading a run folder, also one that a kill left behind."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.report import RunError, read_run
from jaxcomp.runs.table import EPOCHS, STEPS

MakeRun = Callable[..., Path]


def test_reads_all_files(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=3))
    assert run.name == "run"
    assert run.config["optimizer"]["name"] == "momentum"
    assert run.environment["platform"] == "cpu"
    np.testing.assert_array_equal(run.metrics["step"], [100, 200, 300])
    assert run.steps["step"].size == 30
    assert tuple(run.metrics) == (*EPOCHS.columns, "ema_accuracy")
    assert tuple(run.steps) == STEPS.columns


def test_empty_cells_are_nan(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=2, test_accuracy=""))
    assert np.all(np.isnan(run.metrics["test_accuracy"]))
    assert np.all(np.isfinite(run.metrics["train_accuracy"]))


@pytest.mark.parametrize("cut", [1, 3, 40])
def test_ignores_a_torn_last_line(make_run: MakeRun, cut: int) -> None:
    # Cutting only the line end leaves a row that looks whole; it is not trusted.
    folder = make_run(epochs=3)
    for name in ("metrics.csv", "steps.csv"):
        text = (folder / name).read_text()
        (folder / name).write_text(text[:-cut])
    run = read_run(folder)
    np.testing.assert_array_equal(run.metrics["epoch"], [1, 2])
    assert run.steps["step"][-1] == 290


def test_the_last_row_of_a_repeated_epoch_counts(make_run: MakeRun) -> None:
    folder = make_run(epochs=2)
    path = folder / "metrics.csv"
    row = path.read_text().splitlines()[-1].split(",")
    row[EPOCHS.columns.index("train_loss")] = "0.125"
    path.write_text(path.read_text() + ",".join(row) + "\n")
    metrics = read_run(folder).metrics
    np.testing.assert_array_equal(metrics["epoch"], [1, 2])
    assert metrics["train_loss"][-1] == 0.125


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_cut_off_json_file_counts_as_empty(make_run: MakeRun, name: str) -> None:
    folder = make_run(epochs=1)
    (folder / name).write_text((folder / name).read_text()[:-5])
    run = read_run(folder)
    assert {} in (run.config, run.environment)


@pytest.mark.parametrize("content", [None, "", "step,epoch\n"])
def test_steps_may_be_missing(make_run: MakeRun, content: str | None) -> None:
    folder = make_run(epochs=1)
    (folder / "steps.csv").unlink()
    if content is not None:
        (folder / "steps.csv").write_text(content)
    assert read_run(folder).steps["step_seconds"].shape == (0,)


def test_missing_metrics_are_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no metrics\.csv in .*: expected") as error:
        read_run(tmp_path)
    assert str(tmp_path) in str(error.value)
    with pytest.raises(RunError, match="no run folder at .*nowhere"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "no complete row"),
        ("epoch,step\n", "no complete row"),
        ("epoch,step\n1,10", "no complete row"),
        ("loss\n1\n", "no column 'epoch'"),
        ("epoch,step\n1\n2,20\n", "line 2 of .* has 1 cells, expected 2"),
        ("epoch,step\n1,ten\n", "line 2 of .* holds 'ten', expected a number"),
        ("epoch,step\n,10\n", "line 2 of .* names no epoch"),
    ],
)
def test_a_damaged_table_is_an_error(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "metrics.csv").write_text(table)
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)
