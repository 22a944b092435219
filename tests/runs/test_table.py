"""The one reader and the one writer of tables."""

import numpy as np
import pytest

from jaxcomp.runs.folder import RunError
from jaxcomp.runs.table import EPOCHS, METRICS, STEPS, Schema, open_table, read_table

SCHEMA = Schema(("step", "loss"), ("step",))


def all_of(row):
    return True


def test_a_column_that_the_table_does_not_have_is_an_error(tmp_path):
    append = open_table(tmp_path / "a.csv", SCHEMA, all_of)
    with pytest.raises(ValueError, match="accuracy"):
        append({"step": 1, "accuracy": 0.5})


@pytest.mark.parametrize("cut", [2, 3, 5])
def test_a_torn_row_never_counts_and_nothing_is_glued_to_it(tmp_path, cut):
    """Without its line end a row may look whole and hold half a number."""
    path = tmp_path / "steps.csv"
    append = open_table(path, SCHEMA, all_of)
    for step in (1, 2):
        append({"step": step, "loss": 0.125})
    path.write_bytes(path.read_bytes()[:-cut])
    np.testing.assert_array_equal(read_table(path, SCHEMA)["step"], [1])
    open_table(path, SCHEMA, all_of)({"step": 2, "loss": 0.5})
    np.testing.assert_array_equal(read_table(path, SCHEMA)["loss"], [0.125, 0.5])


def test_a_table_of_another_version_keeps_its_rows(tmp_path):
    """Its columns stay to the letter; those that it lacks are empty."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,theirs\n10,a b\n20,0.50\n30,c\n")
    append = open_table(path, SCHEMA, lambda row: row["step"] <= 20)
    append({"step": 30, "loss": 0.25})
    wanted = ["step,loss,theirs", "10,,a b", "20,,0.50", "30,0.25,"]
    assert path.read_text().splitlines() == wanted


def test_of_repeated_rows_the_last_counts(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n1,1\n2,2\n1,3\n")
    np.testing.assert_array_equal(read_table(path, SCHEMA)["loss"], [3, 2])
    open_table(path, SCHEMA, all_of)
    assert path.read_text().splitlines() == ["step,loss", "1,3", "2,2"]


def test_damage_in_the_middle_is_named_and_nothing_is_changed(tmp_path):
    path = tmp_path / "a.csv"
    text = "step,loss\n1,0.5\n2\n3,0.5\n"
    path.write_text(text)
    with pytest.raises(RunError, match="line 3 of .* has 1 cells, expected 2"):
        open_table(path, SCHEMA, all_of)
    assert path.read_text() == text


@pytest.mark.parametrize("rows", [1, 50_000])
def test_an_unclosed_quote_is_one_message_with_its_line(tmp_path, rows):
    """The lines after it are no part of its cell, however many they are."""
    path = tmp_path / "a.csv"
    path.write_text('step,loss\n1,0.5\n2,"0.5\n' + "3,0.5\n" * rows)
    with pytest.raises(RunError, match="line 3 of .* is no row .* remove that line"):
        read_table(path, SCHEMA)


def test_a_metric_sums_up_a_figure_of_steps_that_is_known():
    known = {*STEPS.columns, "overflow", "loss_scale", "overflowed"}  # of some runs
    assert {metric.of_step for metric in METRICS if metric.of_step} <= known
    assert {metric.over_steps for metric in METRICS} == {"mean", "last", "sum"}
    assert len(set(EPOCHS.columns)) == len(EPOCHS.columns)
