"""`jaxcomp report` and `jaxcomp compare` on the command line."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcomp.cli import compare, main, report

MakeRun = Callable[..., Path]


def run_command(*words: str | Path, name: str = "report") -> int:
    parser = argparse.ArgumentParser(prog="jaxcomp")
    subparsers = parser.add_subparsers(required=True)
    for command in (compare, report):
        command.add_parser(subparsers)
    args = parser.parse_args([name, *map(str, words)])
    return args.run(args)


def test_prints_the_path(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(epochs=1)
    assert run_command(folder) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").is_file()


def test_png_writes_every_plot(make_run: MakeRun, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "figures"
    folder = make_run(epochs=2)
    layers = "epoch,leaf,elements,gradient_norm,error\n2,a/kernel,9,1,0.5\n"
    (folder / "layers.csv").write_text(layers)
    assert run_command(folder, "--png", target) == 0
    names = {path.name for path in target.iterdir()}
    assert {"accuracy.png", "loss.png", "compression.png", "time.png"} < names
    assert {"breakdown.png", "layers.png"} < names
    signature = b"\x89PNG\r\n"
    assert all(path.read_bytes().startswith(signature) for path in target.iterdir())


def test_compare_writes_page_and_pictures(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_run(2, {"compressor": c}, c) for c in ("sign", "none")]
    page = tmp_path / "new" / "page.html"
    words = (*folders, "--out", page, "--png", tmp_path / "png", "--title", "Mine")
    assert run_command(*words, name="compare") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == str(page)
    assert "<h1>Mine</h1>" in page.read_text(encoding="utf-8")
    assert str(tmp_path / "png" / "trade_off.png") in printed
    assert all(Path(line).is_file() for line in printed)


def test_what_a_config_names_is_not_called_where_it_is_only_read(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Import paths are code. Who shows a run or lists a sweep runs none of it."""
    victim = tmp_path / "victim"
    code = f"os:mkdir(path={str(victim)!r})"
    keys = ("task", "dataset", "model", "augment", "eval_view", "schedule")
    config = {**dict.fromkeys(keys, code), "loggers": [code]}
    folder = make_run(epochs=1, config=config)
    written = json.loads((folder / "config.json").read_text())
    assert config.items() <= written.items()
    assert run_command(folder, "--png", tmp_path / "png") == 0
    words = (folder, "--out", tmp_path / "page.html")
    assert run_command(*words, name="compare") == 0
    plan = {
        "config": "configs/default.py",
        "runs": [{**config, "loggers": f"[{code!r}]"}],
    }
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    assert main(["sweep", str(tmp_path / "plan.yaml"), "--list"]) == 0
    assert "os:mkdir" in capsys.readouterr().out
    assert not victim.exists()


def test_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(tmp_path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"jaxcomp report: no metrics.csv in {tmp_path}")
    assert printed.err.count("\n") == 1
    assert run_command(tmp_path, "--out", tmp_path / "x.html", name="compare") == 2
    assert capsys.readouterr().err.startswith("jaxcomp compare: no metrics.csv in")
    assert not (tmp_path / "x.html").exists()


def test_png_into_a_file_is_an_error(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run_command(make_run(epochs=1), "--png", tmp_path / "file") == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize("name", ["compare", "report"])
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run_command("--help", name=name)
    assert stop.value.code == 0
    assert f"jaxcomp {name} runs/" in capsys.readouterr().out


def test_several_folders_are_followed_by_nobody(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(epochs=1)
    assert run_command(folder, folder, "--watch") == 2
    assert "--watch follows one run, not 2" in capsys.readouterr().err


def test_matplotlib_is_not_imported_for_a_page(make_run: MakeRun) -> None:
    code = (
        "import sys, jaxcomp.report; jaxcomp.report.write_report(sys.argv[1]); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    words = [sys.executable, "-c", code, str(make_run(epochs=1))]
    assert subprocess.run(words, check=False).returncode == 0
