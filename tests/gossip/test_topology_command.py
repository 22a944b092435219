"""`jaxcomp topology` on the command line."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from jaxcomp.cli import main


def run_command(*words: str | int | Path) -> int:
    return main(["topology", *map(str, words)])


def test_shows_facts_and_who_hears_whom(capsys: pytest.CaptureFixture[str]):
    assert run_command("ring", 4) == 0
    facts, _, heard = capsys.readouterr().out.partition("\n\n")
    assert "slots         2 a round, 8 messages" in facts
    assert "spectral gap  0.6667" in facts
    rows = ["0 hears 1, 3", "1 hears 0, 2", "2 hears 1, 3", "3 hears 0, 2"]
    assert [line.strip() for line in heard.splitlines()] == rows
    assert run_command("exponential(one_peer=True)", 8) == 0
    assert "round 3 of 3" in capsys.readouterr().out
    assert run_command("complete", 65) == 0
    first_ten = "0 hears 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 54 more"
    assert first_ten in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        ("ring", 1),
        ("torus", 12),
        ("social", 32),
        ("star", 2),
        ("exponential(one_peer=True)", 11),
        ("edges(list=[[0,1],[1,2],[2,0],[0,2],[2,1],[1,0]], directed=True)", 3),
    ],
)
def test_draws_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, workers: int
):
    svg = tmp_path / "deep" / "graph.svg"
    assert run_command(spec, workers, "--draw", svg) == 0
    assert capsys.readouterr().out.endswith(f"\n{svg}\n")
    first = svg.read_text()
    assert first.count("<circle") == workers * max(1, first.count(">round "))
    assert run_command(spec, workers, "--draw", svg) == 0
    assert svg.read_text() == first
    assert ElementTree.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"
