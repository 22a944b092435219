"""The page of several training runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.report import RunError, comparison, read_run, write_comparison
from jaxcomp.report.charts import Judged, judged
from jaxcomp.report.grouping import group_runs
from tests.report.test_report_page import figures

SIGN = {"compressor": "sign"}
NONE = {"compressor": "none", "exchange": "exact", "memory": "none"}
# Two epochs of 100 steps, of which 1.5 gradients leave each of four workers.
EXACT = {"wire_bytes_per_step": 1_090_000, "bytes_left": 327_000_000}


@pytest.fixture
def folders(make_run) -> list[Path]:
    """Signs with two seeds, and all gradients whole with one."""
    return [
        make_run(2, SIGN, "sign-0", test_accuracy=0.9),
        make_run(2, SIGN | {"seed": 1}, "sign-1", test_accuracy=0.8),
        make_run(2, NONE, "exact", test_accuracy=0.95, **EXACT),
    ]


def compared(*folders: Path) -> tuple[list[comparison.Best], Judged]:
    """The best of each group of runs, and by what it is."""
    runs = [read_run(folder) for folder in folders]
    measure = judged(runs)
    return [comparison.best_of(group, measure) for group in group_runs(runs)], measure


def best_table(page: str) -> list[list[str]]:
    table = page[page.index('id="best"') :]
    rows = re.findall(r"<tr.*?</tr>", table[: table.index("</table>")], re.DOTALL)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    plain = [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in cells]
    return [[re.sub(r"\s+", " ", cell) for cell in row] for row in plain]


def test_runs_that_differ_in_the_seed_are_one_line(folders):
    groups = group_runs([read_run(folder) for folder in folders])
    assert [(g.label, g.short, len(g.runs)) for g in groups] == [
        ("sign, error_feedback, gather", "sign", 2),
        ("exact", "exact", 1),
    ]
    [panel, *_] = comparison.comparison_plots(groups)["accuracy"].panels
    sign, exact = panel.series
    np.testing.assert_allclose(
        [sign.low, sign.y, sign.high], [[0.8] * 2, [0.85] * 2, [0.9] * 2]
    )
    assert exact.low.tolist() == exact.high.tolist() == [0.95] * 2


def test_the_table_has_the_best_and_what_differs(folders):
    page = folders[0].parent / "page.html"
    assert write_comparison(folders, page) == page
    head, sign, exact = best_table(page.read_text(encoding="utf-8"))
    assert head == [
        *("runs", "best test accuracy", "range", "in epoch", "at the end"),
        *("left a worker", "ratio", "messages of a worker", "time", "seeds"),
        *("exchange", "compressor", "memory"),
    ]
    assert sign == [
        *("sign", "85.00 %", "80.00 % to 90.00 %", "1", "85.00 %"),
        # A message is a fiftieth, of which three are forwarded: 50 x 2 / 4.
        *("13.1 MB", "25×", "4.36 MB", "25 s", "2", "gather", "sign", "error_feedback"),
    ]
    assert exact[:2] == ["exact best", "95.00 %"]
    assert exact[5:8] == ["327 MB", "1×", "218 MB"]


def test_of_equal_groups_the_one_with_the_fewest_bytes_is_best(make_run):
    found, measure = compared(
        make_run(1, NONE, "a", test_accuracy=0.5, bytes_left=900),
        make_run(1, SIGN, "b", test_accuracy=0.5, bytes_left=300),
    )
    assert comparison.winner(found, measure) is found[1]
    plot = comparison.trade_off(found, measure)
    assert plot
    assert plot.panels[0].front == [(300.0, 0.5)]


def test_of_different_tasks_none_is_the_best(make_run, tmp_path):
    facts = {"measure": "perplexity"}
    other = make_run(2, {"dataset": "text"}, "b", facts, test_perplexity=7.25)
    folders = [make_run(2, {}, "a"), other]
    found, measure = compared(*folders)
    assert comparison.winner(found, measure) is None
    assert "so that none is marked" in comparison.rule(found, measure)
    # They are judged by what both have, and each has a line where it has figures.
    assert measure.column == "test_accuracy"
    write_comparison(folders, tmp_path / "page.html")
    write_comparison(folders[::-1], tmp_path / "page.html")


def test_without_accuracy_a_loss_decides(make_run):
    lost = {"test_accuracy": "", "train_accuracy": ""}
    found, measure = compared(
        make_run(1, SIGN, "a", **lost, test_loss=0.5),
        make_run(1, NONE, "b", **lost, test_loss=0.25),
    )
    assert (measure.column, measure.higher) == ("test_loss", False)
    assert comparison.winner(found, measure) is found[1]
    plot = comparison.trade_off(found, measure)
    assert plot
    assert "left and down" in plot.caption


def test_folders_without_runs_are_said(folders, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "metrics.csv").write_text("epoch,step\n1,ten\n")
    page = tmp_path / "page.html"
    write_comparison([tmp_path / "<nowhere>", *folders, broken, folders[0]], page)
    text = page.read_text(encoding="utf-8")
    assert f"Left out: no run folder at {tmp_path}/&lt;nowhere&gt;" in text
    assert "Left out: line 2 of" in text
    assert "<h1>Comparison of 3 runs</h1>" in text  # one folder was named twice
    with pytest.raises(RunError, match=r"(?s)no run folder at .*line 2 of"):
        write_comparison([tmp_path / "nowhere", broken], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_unfinished_and_diverged_runs_are_said(make_run, tmp_path):
    short = make_run(2, SIGN | {"train_for": "5 epochs"}, "short")
    losses = {"loss": [*range(20, 1, -1), np.inf]}
    lost = make_run(2, NONE | {"train_for": "2 epochs"}, "lost", steps=losses)
    page = write_comparison([short, lost], tmp_path / "page.html").read_text()
    assert ">lost: This run diverged: the loss is not finite at the end." in page
    # The short one has better figures and fewer bytes, because it has not ended.
    head, *rows = best_table(page)
    ended = head.index("ended")
    assert [(row[0], row[ended]) for row in rows] == [
        ("sign", "unfinished: step 200 of 500"),
        ("exact best", "yes"),
    ]
    assert "of runs that have ended" in page
    assert comparison.trade_off(*compared(short, lost)) is None


def test_one_run_and_equal_labels(make_run, tmp_path):
    one = make_run(1, SIGN, "one")
    page = write_comparison([one], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "trade_off" not in figures(page)
    # Nothing is known of two runs without a config: they are named after their folders.
    for name in ("x", "y"):
        (make_run(1, {}, name) / "config.json").unlink()
    runs = [read_run(tmp_path / name) for name in ("x", "y")]
    assert [group.label for group in group_runs(runs)] == ["x", "y"]


def test_bytes_have_a_logarithmic_axis_where_they_differ_much(
    folders,
):
    groups = group_runs([read_run(folder) for folder in folders])
    panels = comparison.comparison_plots(groups)["loss"].panels
    assert [panel.x.log for panel in panels] == [False, False, True]
    panels = comparison.comparison_plots(groups[:1])["loss"].panels
    assert [panel.x.log for panel in panels] == [False, False, False]
