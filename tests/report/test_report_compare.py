"""The page of several training runs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcomp.report import RunError, read_run, write_comparison
from jaxcomp.report.comparison import (
    best_of,
    comparison_plots,
    front,
    rule,
    trade_off,
    winner,
)
from jaxcomp.report.figures import group_runs, judged
from tests.report.test_report_page import figures

MakeRun = Callable[..., Path]
SIGN = {"compressor": "sign"}
NONE = {"compressor": "none", "exchange": "exact", "memory": "none"}
# Two epochs of 100 steps, of which 1.5 gradients leave each of four workers.
EXACT = {"wire_bytes_per_step": 1_090_000, "bytes_left": 327_000_000}


@pytest.fixture
def folders(make_run: MakeRun) -> list[Path]:
    """Signs with two seeds, and all gradients whole with one."""
    return [
        make_run(2, SIGN, "sign-0", test_accuracy=0.9),
        make_run(2, SIGN | {"seed": 1}, "sign-1", test_accuracy=0.8),
        make_run(2, NONE, "exact", test_accuracy=0.95, **EXACT),
    ]


def best_table(page: str) -> list[list[str]]:
    table = page[page.index('id="best"') :]
    rows = re.findall(r"<tr.*?</tr>", table[: table.index("</table>")], re.DOTALL)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    plain = [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in cells]
    return [[re.sub(r"\s+", " ", cell) for cell in row] for row in plain]


def test_runs_that_differ_in_the_seed_are_one_line(folders: list[Path]) -> None:
    groups = group_runs([read_run(folder) for folder in folders])
    assert [(g.label, g.short, len(g.runs)) for g in groups] == [
        ("sign, error_feedback, gather", "sign", 2),
        ("exact", "exact", 1),
    ]
    [panel, *_] = comparison_plots(groups)["accuracy"].panels
    sign, exact = panel.series
    np.testing.assert_allclose(
        [sign.low, sign.y, sign.high], [[0.8] * 2, [0.85] * 2, [0.9] * 2]
    )
    assert exact.low.tolist() == exact.high.tolist() == [0.95] * 2


def test_the_table_has_the_best_and_what_differs(folders: list[Path]) -> None:
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


def test_the_page_says_how_the_best_was_chosen(folders: list[Path]) -> None:
    runs = [read_run(folder) for folder in folders]
    groups = group_runs(runs)
    text = rule(judged(runs), groups)
    assert "the highest test accuracy of any epoch" in text
    assert "means over the seeds" in text
    assert "by the test set flatters" in text


def test_of_equal_groups_the_one_with_the_fewest_bytes_is_best(
    make_run: MakeRun,
) -> None:
    runs = [
        read_run(make_run(1, NONE, "a", test_accuracy=0.5, bytes_left=900)),
        read_run(make_run(1, SIGN, "b", test_accuracy=0.5, bytes_left=300)),
    ]
    measure = judged(runs)
    groups = group_runs(runs)
    found = [best_of(group, measure) for group in groups]
    assert winner(groups, found, measure) == 1
    assert front(found, measure) == [(300.0, 0.5)]


def test_of_different_data_sets_none_is_the_best(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run(1, {"dataset": name}, name)) for name in ("cifar10", "mnist")
    ]
    measure, groups = judged(runs), group_runs(runs)
    assert (
        winner(groups, [best_of(group, measure) for group in groups], measure) is None
    )
    assert "so that none is marked" in rule(measure, groups)


def test_without_accuracy_a_loss_decides(make_run: MakeRun) -> None:
    lost: dict[str, Any] = {"test_accuracy": "", "train_accuracy": ""}
    runs = [
        read_run(make_run(1, SIGN, "a", **lost, test_loss=0.5)),
        read_run(make_run(1, NONE, "b", **lost, test_loss=0.25)),
    ]
    measure = judged(runs)
    assert (measure.column, measure.higher) == ("test_loss", False)
    groups = group_runs(runs)
    assert winner(groups, [best_of(group, measure) for group in groups], measure) == 1
    plot = trade_off(groups, measure)
    assert plot
    assert "left and down" in plot.caption


def test_folders_without_runs_are_said(folders: list[Path], tmp_path: Path) -> None:
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


def test_unfinished_and_diverged_runs_are_said(
    make_run: MakeRun, tmp_path: Path
) -> None:
    short = make_run(2, SIGN | {"train_for": "5 epochs"}, "short")
    lost = make_run(2, NONE | {"train_for": "2 epochs"}, "lost")
    text = (lost / "steps.csv").read_text()
    (lost / "steps.csv").write_text(re.sub(r"(?m)^(200,\d+),[^,]*", r"\1,inf", text))
    page = write_comparison([short, lost], tmp_path / "page.html").read_text()
    assert (
        'role="alert">lost: This run diverged: the loss is not finite at the end.'
        in page
    )
    # The short one has better figures and fewer bytes, because it has not ended.
    head, *rows = best_table(page)
    ended = head.index("ended")
    assert [(row[0], row[ended]) for row in rows] == [
        ("sign", "unfinished: step 200 of 500"),
        ("exact best", "yes"),
    ]
    assert "of runs that have ended" in page
    groups = group_runs([read_run(short), read_run(lost)])
    assert trade_off(groups, judged([*groups[0].runs])) is None


def test_a_run_of_an_older_version_has_messages_and_no_ratio(
    make_run: MakeRun, tmp_path: Path
) -> None:
    old = {"bytes_left": "", "exact_bytes_left": "", "times_fewer": ""}
    runs = [make_run(2, SIGN, "new"), make_run(2, NONE, "old", **old)]
    page = write_comparison(runs, tmp_path / "page.html").read_text()
    head, new, older = best_table(page)
    columns = [
        head.index(x) for x in ("left a worker", "ratio", "messages of a worker")
    ]
    assert [new[i] for i in columns] == ["13.1 MB", "25×", "4.36 MB"]
    assert [older[i] for i in columns] == ["–", "–", "4.36 MB"]
    assert "old: This run does not know how many bytes left a worker" in page
    assert "new: This run" not in page


def test_a_note_is_kept_until_it_is_replaced(folders: list[Path]) -> None:
    page = folders[0].parent / "page.html"
    note = "first </p><script>\nsecond & last"

    def shown(**how: str) -> str:
        write_comparison(folders, page, **how)
        found = re.findall(r'id="note">(.*?)</p>', page.read_text(), re.DOTALL)
        return found[0] if found else ""

    escaped = "first &lt;/p&gt;&lt;script&gt;\nsecond &amp; last"
    assert shown(note=note) == escaped
    assert shown() == escaped
    assert shown(title="Another") == escaped
    assert shown(note="new") == "new"
    assert shown(note="") == ""
    assert shown() == ""


def test_one_run_and_equal_labels(make_run: MakeRun, tmp_path: Path) -> None:
    one = make_run(1, SIGN, "one")
    page = write_comparison([one], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "trade_off" not in figures(page)
    # Nothing is known of two runs without a config: they are named after their folders.
    for name in ("x", "y"):
        (make_run(1, {}, name) / "config.json").unlink()
    runs = [read_run(tmp_path / name) for name in ("x", "y")]
    assert [group.label for group in group_runs(runs)] == ["x", "y"]


def test_bytes_have_a_logarithmic_axis_where_they_differ_much(
    folders: list[Path],
) -> None:
    groups = group_runs([read_run(folder) for folder in folders])
    panels = comparison_plots(groups)["loss"].panels
    assert [panel.x.log for panel in panels] == [False, False, True]
    panels = comparison_plots(groups[:1])["loss"].panels
    assert [panel.x.log for panel in panels] == [False, False, False]
