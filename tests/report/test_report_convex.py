"""Reports of convex runs: one, several, damaged, and mixed with others."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.cli import report
from jaxcomp.report import RunError, read_convex, read_run, write_report
from jaxcomp.report.convex_curves import COLOURS, draw_runs
from jaxcomp.report.evaluations import evaluations
from jaxcomp.report.run_folder import is_convex
from tests.report.test_report_page import Page, headline

Make = Callable[..., Path]


def run_command(*words: str | Path) -> int:
    parser = argparse.ArgumentParser(prog="jaxcomp")
    report.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["report", *map(str, words)])
    return args.run(args)


def test_page_of_one_run(make_convex: Make) -> None:
    folder = make_convex(evaluations=2)
    path = write_report(folder)
    assert path == folder / "report.html"
    text = path.read_text(encoding="utf-8")
    problem = "synthetic(features=2000), partition random"
    method = "choco(gamma=0.05) on ring, top_k(keep=0.01)"
    assert f"<h1>{method}, 9 workers, {problem}</h1>" in text
    assert headline(text) == {
        # 0.1, 0.2 and 0.4, divided by 2^2 at the second evaluation.
        "final suboptimality": ("0.05", "median of 3 seeds, 0.5 at the start"),
        "suboptimality of the seeds": ("0.025", "lowest; highest 0.1"),
        "of the worst worker": ("0.1", "median"),
        "consensus distance": ("0.5", "at the end"),
        "sent per worker in total": ("38.4 kB", "uncompressed 384 kB, simulated"),
        "compression": ("10×", "uncompressed / sent"),
        "steps": ("200", "epochs: 1"),
    }
    row = "<td>0.5</td><td>100</td><td>3</td><td>19.2 kB</td><td>6</td><td>0.2</td>"
    assert row in text
    page = Page(text)
    assert page.tags["svg"] == 1
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") or link == "data:," for link in page.links)


def test_page_of_several_runs_has_a_row_each(make_convex: Make) -> None:
    first = make_convex("ring")
    second = make_convex("full", (0.1,), method="d_psgd on complete")
    text = write_report(first, second).read_text(encoding="utf-8")
    assert not (second / "report.html").exists()
    assert "<tr><td>ring</td><td>choco(gamma=0.05) on ring, top" in text
    assert "<tr><td>full</td><td>d_psgd on complete</td>" in text
    assert "<h2>Evaluations of ring</h2>" in text
    assert "<h2>Evaluations of full</h2>" in text


def test_curves_share_a_row_where_the_problem_is_the_same(make_convex: Make) -> None:
    sorted_too = {"partition": "sorted"}
    runs = [
        read_convex(make_convex("a")),
        read_convex(make_convex("b", method="d_psgd on ring")),
        read_convex(make_convex("c", config=sorted_too)),
    ]
    axes = draw_runs(runs).axes
    assert len(axes) == 4
    titles = [a.get_title(loc="left") for a in axes if a.get_title(loc="left")]
    problem = "synthetic(features=2000), partition"
    assert titles == [f"{problem} random", f"{problem} sorted"]
    # The same method has the same colour in both rows.
    assert axes[0].lines[0].get_color() == axes[2].lines[0].get_color() == COLOURS[0]
    np.testing.assert_allclose(
        np.asarray(axes[0].lines[0].get_ydata()), [0.2, 0.05, 0.2 / 9]
    )
    labels = [
        text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in axes[1].texts
    ]
    assert labels == ["choco(gamma=0.05)\non ring,\ntop_k(keep=0.01)", "d_psgd on ring"]


def test_equal_methods_are_labelled_by_folder(make_convex: Make) -> None:
    runs = [read_convex(make_convex(name)) for name in ("slow", "fast")]
    labels = [text.get_text() for text in draw_runs(runs).axes[1].texts]
    assert labels == ["slow", "fast"]
    twice = [text.get_text() for text in draw_runs([runs[0]] * 2).axes[1].texts]
    assert twice == ["1 slow", "2 slow"]


def test_more_runs_than_colours_are_an_error(make_convex: Make) -> None:
    run = read_convex(make_convex())
    count = len(COLOURS) + 1
    message = f"got {count} convex runs, expected {count - 1} at most"
    with pytest.raises(RunError, match=message):
        draw_runs([run._replace(name=str(i)) for i in range(count)])


def test_mixing_convex_and_other_folders_is_an_error(
    make_convex: Make, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    convex, other = make_convex(), make_run(epochs=1)
    for folders in ((convex, other), (other, convex)):
        assert run_command(*folders) == 2
        message = f"{convex} holds a convex run and {other} does not: a report shows "
        assert message in capsys.readouterr().err
    assert not (convex / "report.html").exists()
    assert run_command(other, other) == 2
    assert "got 2 training runs, expected one" in capsys.readouterr().err
    with pytest.raises(RunError, match="holds a convex run, expected a training"):
        read_run(convex)


def test_command_writes_the_plot(make_convex: Make, tmp_path: Path) -> None:
    assert run_command(make_convex(), "--png", tmp_path / "figures") == 0
    files = list((tmp_path / "figures").iterdir())
    assert [file.name for file in files] == ["suboptimality.png"]
    assert files[0].read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_cut_off_json_file_counts_as_empty(make_convex: Make, name: str) -> None:
    folder = make_convex()
    (folder / name).write_text("{")
    assert is_convex(folder)
    text = write_report(folder).read_text(encoding="utf-8")
    assert f"{name} is missing or cut off" in text
    assert ">nan" not in text


def test_a_killed_run_has_fewer_seeds_at_later_steps(make_convex: Make) -> None:
    folder = make_convex(evaluations=2)
    path = folder / "metrics.csv"
    path.write_text(path.read_text()[:-3])
    found = evaluations(read_convex(folder))
    np.testing.assert_array_equal(found["seeds"], [3, 2])
    np.testing.assert_allclose(found["suboptimality"], [0.2, 0.0375])
    assert "median of 2 seeds" in write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("levels", [(0.1,), (0.1, -1e-17), (0.1, np.inf, 0.3)])
@pytest.mark.parametrize("count", [1, 2])
def test_short_and_exact_and_lost_runs(
    make_convex: Make, levels: tuple[float, ...], count: int
) -> None:
    text = write_report(make_convex(levels=levels, evaluations=count)).read_text()
    assert ">nan" not in text


def test_nothing_to_draw_or_to_read_is_an_error(make_convex: Make) -> None:
    folder = make_convex(levels=(0.0,))
    with pytest.raises(RunError, match="no suboptimality above 0 in ring"):
        write_report(folder)
    header = (folder / "metrics.csv").read_text().splitlines()[0]
    (folder / "metrics.csv").write_text(f"{header}\n")
    with pytest.raises(RunError, match="no complete row .* one row per evaluation"):
        write_report(folder)
    (folder / "metrics.csv").write_text("step,suboptimality\n1,0.5\n")
    with pytest.raises(RunError, match="no column 'seed'"):
        write_report(folder)
