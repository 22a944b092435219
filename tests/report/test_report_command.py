"""`jaxcomp report` on the command line."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcomp.cli import report

MakeRun = Callable[..., Path]


def run_command(*words: str | Path) -> int:
    parser = argparse.ArgumentParser(prog="jaxcomp")
    report.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["report", *map(str, words)])
    return args.run(args)


def test_prints_the_path(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(epochs=1)
    assert run_command(folder) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").is_file()


def test_png_writes_every_plot(make_run: MakeRun, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "figures"
    assert run_command(make_run(epochs=2), "--png", target) == 0
    names = {path.name for path in target.iterdir()}
    assert {"accuracy.png", "bytes.png", "loss.png", "time.png"} < names
    signature = b"\x89PNG\r\n"
    assert all(path.read_bytes().startswith(signature) for path in target.iterdir())


def test_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(tmp_path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"jaxcomp report: no metrics.csv in {tmp_path}")
    assert printed.err.count("\n") == 1


def test_png_into_a_file_is_an_error(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run_command(make_run(epochs=1), "--png", tmp_path / "file") == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run_command("--help")
    assert stop.value.code == 0
    assert "jaxcomp report runs/" in capsys.readouterr().out


def test_matplotlib_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, jaxcomp.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
