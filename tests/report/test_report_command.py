"""`jaxcomp report` and `jaxcomp compare` on the command line."""

import json
from pathlib import Path

from jaxcomp.cli import main


def run_command(*words: str | Path, name: str = "report") -> int:
    return main([name, *map(str, words)])


def test_each_command_writes_its_page_and_says_where(make_run, tmp_path, capsys):
    folder = make_run(epochs=1)
    assert run_command(folder) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").is_file()
    page = tmp_path / "new" / "page.html"
    assert run_command(folder, "--out", page, "--title", "Mine", name="compare") == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "<h1>Mine</h1>" in page.read_text(encoding="utf-8")


def test_what_a_config_names_is_not_called_where_it_is_only_read(
    make_run, tmp_path, capsys
):
    """Import paths are code. Who shows a run or lists a sweep runs none of it."""
    victim = tmp_path / "victim"
    code = f"os:mkdir(path={str(victim)!r})"
    keys = ("task", "dataset", "model", "augment", "eval_view", "schedule")
    config = {**dict.fromkeys(keys, code), "loggers": [code]}
    folder = make_run(epochs=1, config=config)
    written = json.loads((folder / "config.json").read_text())
    assert config.items() <= written.items()
    assert run_command(folder) == 0
    words = (folder, "--out", tmp_path / "page.html")
    assert run_command(*words, name="compare") == 0
    settings = [{**config, "loggers": f"[{code!r}]"}]
    program = f"""
from jaxcomp.cli.sweeps import Sweep


def get_sweep():
    return Sweep("configs/default.py", {settings!r})
"""
    (tmp_path / "plan.py").write_text(program)
    assert main(["sweep", str(tmp_path / "plan.py"), "--list"]) == 0
    assert "os:mkdir" in capsys.readouterr().out
    assert not victim.exists()


def test_error_is_one_line(tmp_path, capsys):
    assert run_command(tmp_path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"jaxcomp report: no metrics.csv in {tmp_path}")
    assert printed.err.count("\n") == 1
    assert run_command(tmp_path, "--out", tmp_path / "x.html", name="compare") == 2
    assert capsys.readouterr().err.startswith("jaxcomp compare: no metrics.csv in")
    assert not (tmp_path / "x.html").exists()
