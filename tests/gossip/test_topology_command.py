"""`jaxcomp topology` on the command line."""

from pathlib import Path

import pytest

from jaxcomp.cli import main
from jaxcomp.mixers.gossip.topology import REGISTRY


def run_command(*words: str | int | Path) -> int:
    return main(["topology", *map(str, words)])


def test_shows_facts_and_rows_of_dots(capsys: pytest.CaptureFixture[str]):
    assert run_command("ring", 4) == 0
    printed = capsys.readouterr().out
    facts = {
        line.split("  ")[1].strip(): line.split("  ")[-1].strip()
        for line in printed.partition("\n\n")[0].splitlines()[1:]
    }
    assert facts["degree"] == "2"
    assert facts["spectral gap"] == "0.6667"
    assert facts["slots"] == "2 a round, 8 messages"
    assert facts["symmetric"] == "yes"
    rows = [line.split()[1:] for line in printed.partition("\n\n")[2].splitlines()[1:5]]
    assert rows == [list("○●·●"), list("●○●·"), list("·●○●"), list("●·●○")]


def test_rounds_and_large_graphs(capsys: pytest.CaptureFixture[str]):
    assert run_command("exponential(one_peer=True)", 8) == 0
    assert "round 3 of 3" in capsys.readouterr().out
    assert run_command("complete", 65) == 0
    assert (
        "0 hears 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 54 more" in capsys.readouterr().out
    )
    assert run_command("star", 64) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_list_has_a_line_for_every_graph(capsys: pytest.CaptureFixture[str]):
    assert run_command("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    names = {line.split()[0].partition("(")[0] for line in lines[1:]}
    assert names == set(REGISTRY)
    ring = next(line for line in lines if line.startswith("ring "))
    assert ring.split()[1:4] == ["16", "2", "0.051"]


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


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["rign", 4], "unknown topology 'rign'. Did you mean 'ring'?"),
        (["margulis", 5], "needs a perfect square: 4 or 9 workers, not 5"),
        (["ring", 0], "of 1 to 4096, not 0"),
        (["ring", 1_000_000], "of 1 to 4096, not 1000000"),
        (["ring"], "needs WORKERS"),
        ([], "needs SPEC and WORKERS"),
        (["ring", 4, "--draw", "ring.pdf"], "FILE.svg, not ring.pdf"),
    ],
)
def test_errors_are_one_message(
    capsys: pytest.CaptureFixture[str], words: list, reason: str
):
    assert run_command(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("jaxcomp topology: ")
    assert reason in printed.err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        run_command("--help")
    assert stop.value.code == 0
    assert "jaxcomp topology ring 16" in capsys.readouterr().out
