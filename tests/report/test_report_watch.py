"""`jaxcomp report --watch`: the page follows a run that goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcomp.report import RunError
from jaxcomp.report.html import watch

MakeRun = Callable[..., Path]
REFRESH = '<meta http-equiv="refresh"'


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_follows_the_tables_until_the_run_ends(make_run: MakeRun) -> None:
    whole = make_run(epochs=3, config={"train_for": "3 epochs"}, name="whole")
    rows = {
        name: (whole / name).read_text().splitlines(keepends=True)
        for name in ("metrics.csv", "steps.csv")
    }
    folder = make_run(epochs=1, config={"train_for": "3 epochs"})
    (folder / "metrics.csv").write_text(rows["metrics.csv"][0])
    (folder / "steps.csv").write_text(rows["steps.csv"][0])
    said: list[str] = []
    pages: list[str] = []

    def go_on(seconds: float) -> None:
        """What the run does while nobody looks: nothing, then an epoch at a time."""
        assert seconds > 0
        done = len(pages)
        pages.append(page(folder) if (folder / "report.html").exists() else "")
        (folder / "metrics.csv").write_text("".join(rows["metrics.csv"][: 1 + done]))
        (folder / "steps.csv").write_text("".join(rows["steps.csv"][: 1 + 10 * done]))

    watch(folder, said.append, go_on)
    assert pages[0] == pages[1] == ""
    assert "unfinished: step 100 of 300" in pages[2]
    assert all(REFRESH in text for text in pages[2:])
    assert REFRESH not in page(folder)
    assert "unfinished" not in page(folder)
    assert said[0].startswith("waiting: no complete row")
    assert "is kept current" in said[1]
    assert said[2:] == [str(folder / "report.html")]


def test_ctrl_c_ends_it_quietly(make_run: MakeRun) -> None:
    folder = make_run(epochs=1, config={"train_for": "3 epochs"})

    def interrupt(seconds: float) -> None:
        assert REFRESH in page(folder)
        raise KeyboardInterrupt

    watch(folder, lambda line: None, interrupt)
    assert REFRESH not in page(folder)
    assert "unfinished: step 100 of 300" in page(folder)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run folder at .*nowhere"):
        watch(tmp_path / "nowhere")
