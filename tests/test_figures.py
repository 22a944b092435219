"""The figures of the documents are those of docs/measured, and there are no others."""

import re

import jax
import pytest

from benchmarks import figure_tables, figures, runs
from jaxcomp import data

PAGES = {page.name: page for page in figures.PAGES}
# What looks as if it had been measured.
_NUMBER = r"(?<![\w.,])\d[\d.,]*"
LOOKS = re.compile(
    "|".join(
        (
            rf"{_NUMBER}(?:x|×)(?!\w)",
            rf"{_NUMBER} (?:times(?! the rate)|images/s|ms|min|µs)\b",
            rf"{_NUMBER} s\b(?! [/N])",
            rf"{_NUMBER} (?:milli|micro)?seconds?\b",
            rf"{_NUMBER} [kMG]?(?:B|bytes)\b",
            rf"{_NUMBER} [MG]bit/s",
            r"\b\d+\.\d+ %",
            r"\b[1-9]\d %",
            rf"perplexity (?:of )?{_NUMBER}",
        )
    )
)
# What is no measurement of ours, and so needs no data: a pattern, and the reason.
SAID = (
    (r"1 Gbit/s and 10 ms|links of 20 ms", "links of a question"),
    (
        r"(?:links|Ethernet|slower than|for)\s[^.|]{,25}?[\d,.]+\s[MG]bit/s"
        r"|[\d,]+ Mbit/s links|links of 100 GB/s",
        "the links of a question",
    ),
    (
        r"(?:are|with|links of|and|\() ?[\d.]+ ms (?:apart|and more|between|on\b)"
        r"|with\s0?\.?\d+ ms[,. ]",
        "their latency",
    ),
    (r"0\.1 % after|to 0\.1 %|50, 75, 90 %|by default 80 %", "a setting"),
    (r"0\.2 s of arithmetic|pass take 1 s|a `, 200\sms|windows \(64 MB\)", "a setting"),
    (r"after \d+ (?:more )?seconds|within 10 seconds", "a constant of the program"),
    (r"300 s, a limit of jax", "a constant of jax"),
    (r"(?:2 to 4|\b3|\b20) microseconds", "a constant of the model"),
    (r"7\.96 for|at most 1\.07 times|within 10 % in", "a fact that is not measured"),
    (r"32 times\s+smaller|all-reduce of 4 bytes", "a size of types"),
    (r"N - 1 times|by 0 to 4 times|at random 20 times", "how often"),
)


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_those_that_were_measured(page):
    text = PAGES[page].read_text()
    assert text == figures.rewritten(text), "python -m benchmarks.figures --write"


@pytest.mark.parametrize("page", PAGES)
def test_no_line_begins_with_a_figure(page):
    """A comment at the beginning of a line makes HTML of all that follows in it."""
    assert not re.findall(r"^ *<!--=", PAGES[page].read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_one_ratio_of_bytes_is_quoted(page):
    """What leaves a worker over the run, against `exact`: a column of runs.csv."""
    text = PAGES[page].read_text()
    tags = re.findall(r"<!--=([^>]+)-->[^<]*<!--/-->\s+times\s+(?:fewer|less)\b", text)
    assert all(re.fullmatch(r"runs:\w+:fewer", tag) for tag in tags), tags
    assert not re.findall(r"<!--=[^>]*:message[*/][^>]*-->", text)


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_stands_without_its_data(page):
    text = figures.bare(PAGES[page].read_text())
    for pattern, _ in SAID:
        text = re.sub(pattern, "", text)
    assert not [
        (m[0], line) for line in text.splitlines() for m in LOOKS.finditer(line)
    ]


@pytest.mark.parametrize("file", figures.CONFIGS, ids=lambda file: file.stem)
def test_configs_say_the_bytes_of_their_runs(file):
    assert file.read_text() == figures.in_config(file)


def computed(monkeypatch, wanted=None):
    monkeypatch.setitem(data.REGISTRY, "cifar10", runs.stand_in)
    rows = [row for row in runs.read() if wanted is None or row["run"] in wanted]
    assert rows
    # Adam's counts are integers that optax multiplies by floats.
    with jax.numpy_dtype_promotion("standard"):
        assert [row | runs.computed(row) for row in rows] == rows


def test_bytes_of_a_run_follow_from_its_config(monkeypatch):
    """Of 16 steps, one sends."""
    computed(monkeypatch, {"diloco"})


@pytest.mark.slow
def test_bytes_of_all_runs_follow_from_their_configs(monkeypatch):
    computed(monkeypatch)


def test_every_table_is_shown():
    texts = "\n".join(page.read_text() for page in figures.PAGES)
    assert {*re.findall(r"<!--table:(\w+)-->", texts)} == {*figure_tables.TABLES}
