"""Reports of convex runs: one, several, damaged, and mixed with others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.report import RunError, read_convex, read_run, write_report
from jaxcomp.report.figures import convex_plots, group_runs
from jaxcomp.report.plot import drawable
from jaxcomp.report.run_folder import ending, is_convex, joined
from tests.report.test_report_command import run_command
from tests.report.test_report_page import Page, figures, headline

Make = Callable[..., Path]


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
        "left a worker in total": ("38.4 kB", "messages of 38.4 kB, simulated"),
        "bytes saved": ("10×", "exact / this run; with exact 384 kB"),
        "steps": ("200", "epochs: 1"),
    }
    row = "<td>0.5</td><td>100</td><td>3</td><td>19.2 kB</td><td>19.2 kB</td>"
    row += "<td>6</td><td>0.2</td>"
    assert row in text
    page = Page(text)
    assert figures(text) == ["suboptimality", "workers"]
    assert page.plots == 8  # four panels, each in two sizes
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") or link == "data:," for link in page.links)


def test_page_of_several_runs_has_a_row_each(make_convex: Make) -> None:
    first = make_convex("ring")
    second = make_convex("full", (0.1,), config={"topology": "complete"})
    text = write_report(first, second).read_text(encoding="utf-8")
    assert not (second / "report.html").exists()
    assert "A run&#39;s figure is its suboptimality at the end." in text
    # Medians of 0.1, 0.2, 0.4 and of 0.1, divided by 3^2 at the third evaluation.
    assert ">0.02222<" in text
    assert ">0.01111 to 0.04444<" in text
    best = text[text.index('<tr class="best">') :]
    assert ">0.01111<" in best[: best.index("</tr>")]
    assert "complete" in best[: best.index("</tr>")]


def test_curves_share_a_plot_where_the_problem_is_the_same(make_convex: Make) -> None:
    runs = [
        read_convex(make_convex("a")),
        read_convex(make_convex("b", config={"mixer": "d_psgd"})),
        read_convex(make_convex("c", config={"partition": "sorted"})),
    ]
    plots = convex_plots(group_runs(runs))
    titles = [plot.title for plot in plots.values()]
    problem = "synthetic(features=2000), partition"
    assert titles == [
        f"Suboptimality: {problem} random",
        f"The workers' own models: {problem} random",
        f"Suboptimality: {problem} sorted",
        f"The workers' own models: {problem} sorted",
    ]
    over_bytes, over_steps = plots["suboptimality"].panels
    assert [one.slot for one in over_bytes.series] == [0, 1]
    assert plots["suboptimality_2"].panels[0].series[0].slot == 2
    np.testing.assert_allclose(over_bytes.series[0].y, [0.2, 0.05, 0.2 / 9])
    np.testing.assert_allclose(over_bytes.series[0].high, [0.4, 0.1, 0.4 / 9])
    assert over_bytes.series[0].x.tolist() == [19200, 38400, 57600]
    assert over_steps.series[0].x.tolist() == [100, 200, 300]


def test_folders_that_differ_in_the_seed_are_one_curve(make_convex: Make) -> None:
    runs = [
        read_convex(make_convex("a", (0.1, 0.2))),
        read_convex(make_convex("b", (0.6,), config={"seed": 7})),
    ]
    [group] = group_runs(runs)
    [series] = convex_plots([group])["suboptimality"].panels[0].series
    np.testing.assert_allclose(series.y[0], 0.2)  # the median of all three
    np.testing.assert_allclose([series.low[0], series.high[0]], [0.1, 0.6])


def test_many_runs_are_told_apart_by_dashes(make_convex: Make) -> None:
    folders = [
        make_convex(f"run{i}", (0.1 + i,), config={"workers": 2 + i}) for i in range(9)
    ]
    text = write_report(*folders).read_text(encoding="utf-8")
    assert 'class="s7 d0"' in text
    assert 'class="s0 d1"' in text


def test_mixing_convex_and_other_folders_is_an_error(
    make_convex: Make, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    convex, other = make_convex(), make_run(epochs=1)
    for folders in ((convex, other), (other, convex)):
        assert run_command(*folders) == 2
        message = "got 2 folders, and a report shows one run: for several, use "
        assert f"{message}jaxcomp compare" in capsys.readouterr().err
        assert run_command(*folders, name="compare") == 2
        message = f"{convex} holds a convex run and {other} does not: compare either"
        assert message in capsys.readouterr().err
    assert not (convex / "report.html").exists()
    with pytest.raises(RunError, match="holds a convex run, expected a training"):
        read_run(convex)


def test_command_writes_the_plot(make_convex: Make, tmp_path: Path) -> None:
    assert run_command(make_convex(), "--svg", tmp_path / "figures") == 0
    files = sorted((tmp_path / "figures").iterdir())
    assert [file.name for file in files] == ["suboptimality.svg", "workers.svg"]


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
    found = joined([read_convex(folder).metrics])
    np.testing.assert_array_equal(found["seeds"], [3, 2])
    np.testing.assert_allclose(found["suboptimality"], [0.2, 0.0375])
    assert "median of 2 seeds" in write_report(folder).read_text(encoding="utf-8")


def test_a_run_without_all_seeds_is_unfinished(make_convex: Make) -> None:
    plan = {"seeds": 3, "train_for": "300 steps"}
    two = read_convex(make_convex("two", (0.1, 0.2), config=plan))
    assert ending(two).text == "unfinished: seed 2 of 3"
    assert ending(read_convex(make_convex("three", config=plan))).kind == "finished"
    short = read_convex(make_convex("short", evaluations=2, config=plan))
    assert ending(short).text == "unfinished: step 200 of 300"


@pytest.mark.parametrize("levels", [(0.1,), (0.1, -1e-17), (0.1, np.inf, 0.3)])
@pytest.mark.parametrize("count", [1, 2])
def test_short_and_exact_and_lost_runs(
    make_convex: Make, levels: tuple[float, ...], count: int
) -> None:
    text = write_report(make_convex(levels=levels, evaluations=count)).read_text()
    assert ">nan" not in text


def test_what_a_logarithm_cannot_show_is_left_out(make_convex: Make) -> None:
    folder = make_convex(levels=(0.0,))
    plot = convex_plots(group_runs([read_convex(folder)]))["suboptimality"]
    assert drawable(plot.panels[0]) == []
    text = write_report(folder).read_text(encoding="utf-8")
    assert "nothing was recorded" in text
    assert headline(text)["final suboptimality"][0] == "0"


def test_nothing_to_read_is_an_error(make_convex: Make) -> None:
    folder = make_convex()
    header = (folder / "metrics.csv").read_text().splitlines()[0]
    (folder / "metrics.csv").write_text(f"{header}\n")
    with pytest.raises(RunError, match="no complete row .* one row per evaluation"):
        write_report(folder)
    (folder / "metrics.csv").write_text("step,suboptimality\n1,0.5\n")
    with pytest.raises(RunError, match="no column 'seed'"):
        write_report(folder)
