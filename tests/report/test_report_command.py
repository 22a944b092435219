"""`jaxcomp report` and `jaxcomp compare` on the command line."""

import json
from pathlib import Path
from xml.etree import ElementTree

from jaxcomp.cli import main
from jaxcomp.mixers.gossip.topology import graph_facts


def run_command(*words: str | Path, name: str = "report") -> int:
    return main([name, *map(str, words)])


def test_prints_the_path(make_run, capsys):
    folder = make_run(epochs=1)
    assert run_command(folder) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").is_file()


def test_a_picture_of_each_plot_needs_no_page(make_run, tmp_path):
    target = tmp_path / "deep" / "figures"
    folder = make_run(2, facts=graph_facts("exponential(one_peer=True)", 4))
    assert run_command(folder, "--svg", target) == 0
    names = {path.name for path in target.iterdir()}
    wanted = {"accuracy.svg", "loss.svg", "compression.svg", "time.svg", "graph.svg"}
    assert names == wanted
    page = (folder / "report.html").read_text()
    for path in target.iterdir():
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in path.read_text()
        for line in root.iter("{http://www.w3.org/2000/svg}path"):
            assert f'd="{line.attrib["d"]}"' in page or line.attrib["d"] == "M1 5h20"


def test_compare_writes_page_and_pictures(make_run, tmp_path, capsys):
    folders = [make_run(2, {"compressor": c}, c) for c in ("sign", "none")]
    page = tmp_path / "new" / "page.html"
    words = (*folders, "--out", page, "--svg", tmp_path / "svg", "--title", "Mine")
    assert run_command(*words, name="compare") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == str(page)
    assert "<h1>Mine</h1>" in page.read_text(encoding="utf-8")
    assert str(tmp_path / "svg" / "trade_off.svg") in printed
    assert all(Path(line).is_file() for line in printed)


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
    assert run_command(folder, "--svg", tmp_path / "svg") == 0
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


def test_pictures_into_a_file_are_an_error(make_run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run_command(make_run(epochs=1), "--svg", tmp_path / "file") == 1
    assert str(tmp_path / "file") in capsys.readouterr().err
