"""`jaxcomp predict`: its table, its JSON, its plot and its errors."""

import json

import pytest

from jaxcomp.cli import main

COMMAND = ["predict", "--bandwidth=1Mbit", "--workers=4", "--compute=100ms"]
SMALL = ["--model=[(300, 40), (40,)]", "--methods", "sign", "top_k(keep=0.1)"]


def test_the_command_prints_a_table_and_a_verdict(capsys):
    assert main([*COMMAND, *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "12,040 numbers in 2 tensors, 48.2 kB" in printed
    assert "100 ms a step, as you say" in printed
    assert "one worker has all" in printed
    table = printed.split("\n\n")[1].splitlines()
    assert {line.split()[0] for line in table[1:]} == {"exact", *SMALL[2:]}
    assert "times as fast" in printed


def test_the_command_answers_programs(capsys):
    assert main([*COMMAND, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["helps"] is True
    assert found["link"]["bandwidth"] == 125_000
    steps = [row["step"] for row in found["rows"]]
    assert steps == sorted(steps)
    assert {row["method"] for row in found["rows"]} == {"exact", *SMALL[2:]}


@pytest.mark.slow
def test_a_config_says_model_method_and_compute(capsys):
    words = ["--config=configs/default.py", "--bandwidth=100Mbit", "--workers=4"]
    small = ["--config.model=tiny(width=2)", "--config.dataset=digits(size=8)"]
    assert main(["predict", *words, *small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "measured here" in found["compute_is"]
    methods = [row["method"] for row in found["rows"]]
    assert "error_feedback: gather: per_leaf: top_k(keep=0.02)" in methods
