"""Reading a run folder, also one that a kill left behind, and how the run ended."""

import numpy as np
import pytest

from jaxcomp.report import RunError, read_run, write_report
from jaxcomp.report.charts import plots_of
from jaxcomp.report.grouping import group_runs
from jaxcomp.report.plot import scales_of
from jaxcomp.report.run_folder import alarms, run_status
from jaxcomp.runs.table import EPOCHS, STEPS


def test_reads_all_files(make_run):
    run = read_run(make_run(epochs=3, test_loss=""))
    assert run.name == "run"
    assert run.config["optimizer"]["name"] == "momentum"
    assert run.environment["platform"] == "cpu"
    np.testing.assert_array_equal(run.metrics["step"], [100, 200, 300])
    assert run.steps["step"].size == 30
    # Also a column that the table does not have, and cells that are empty.
    assert tuple(run.metrics) == (*EPOCHS.columns, "ema_accuracy")
    assert np.isnan([run.metrics["ema_accuracy"], run.metrics["test_loss"]]).all()
    assert tuple(run.steps) == STEPS.columns


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_cut_off_json_file_counts_as_empty(make_run, name):
    folder = make_run(epochs=1)
    (folder / name).write_text((folder / name).read_text()[:-5])
    run = read_run(folder)
    assert {} in (run.config, run.environment)
    assert f"{name} is missing or cut off" in write_report(folder).read_text("utf-8")


@pytest.mark.parametrize("content", [None, "", "step,epoch\n"])
def test_steps_may_be_missing(make_run, content):
    folder = make_run(epochs=1)
    (folder / "steps.csv").unlink()
    if content is not None:
        (folder / "steps.csv").write_text(content)
    assert read_run(folder).steps["step_seconds"].shape == (0,)


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
def test_a_damaged_table_is_an_error(tmp_path, table, message):
    (tmp_path / "metrics.csv").write_text(table)
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


def test_a_diverged_run_looks_so(make_run):
    good = read_run(make_run(2, {"train_for": "2 epochs"}, "good"))
    assert run_status(good).kind == "finished"
    assert alarms(good) == []
    folder = make_run(2, steps={"loss": [*range(1, 21)]})
    text = write_report(folder).read_text(encoding="utf-8")
    said = "This run diverged: the loss ended at 19.5, above the 1 with which it began."
    assert f'role="alert">{said}</p>' in text
    # Its axis ends where the other curves can still be told apart.
    loss = plots_of(group_runs([read_run(folder)]))["loss"].panels[0]
    assert scales_of(loss)[1].high < 10


def test_a_failed_run_says_why(make_run):
    folder = make_run(1, facts={"failed": "step 120: the loss is <nan>"})
    assert run_status(read_run(folder)).text == "failed: step 120: the loss is <nan>"
    said = 'role="alert">This run has failed: step 120: the loss is &lt;nan&gt;<'
    assert said in write_report(folder).read_text(encoding="utf-8")


def test_an_unfinished_run_is_called_so(make_run):
    for words in ("7 epochs", "700 steps", "358400 examples"):
        folder = make_run(3, {"train_for": words}, words.replace(" ", "-"))
        assert run_status(read_run(folder)).text == "unfinished: step 300 of 700"
    unknown = read_run(make_run(3, {"train_for": "?"}, "q"))
    assert run_status(unknown).kind == "finished"
