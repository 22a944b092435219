"""The figures of the documents are those of docs/measured, and there are no others."""

import re

import pytest

from benchmarks import figures

PAGES = {page.name: page for page in figures.PAGES}
# What looks as if it had been measured.
_NUMBER = r"(?<![\w.,])\d[\d.,]*"
LOOKS = re.compile(
    "|".join(
        (
            rf"{_NUMBER}(?:x|×)(?!\w)",
            rf"{_NUMBER} (?:times|images/s|ms|s|min|µs)\b",
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
    (r"(?:links|Ethernet)[^.|]{,25} [\d,.]+ [MG]bit/s|\(20 ms and more", "a setting"),
    (r"slower than 10 Gbit/s|100 Mbit/s links", "a setting"),
    (r"0\.1 % after|to 0\.1 %|0\.2 s of arithmetic", "a setting"),
    (r"32 times\s+smaller|all-reduce of 4 bytes", "a size of types"),
    (r"perplexity of 7\.96 for", "of the grammar itself, which makes its sentences"),
    (r"after \d+ (?:more )?seconds|within 10 seconds|by default 80 %", "a constant"),
    (r"N - 1 times|by 0 to 4 times|at random 20 times", "how often"),
)
# Pages whose figures are not bound to their data yet.
OPEN = {"accelerators.md", "convex.md", "methods.md", "predict.md", "scaling.md"}


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_those_that_were_measured(page):
    text = PAGES[page].read_text()
    assert text == figures.rewritten(text), "python -m benchmarks.figures --write"


@pytest.mark.parametrize("page", PAGES.keys() - OPEN)
def test_no_figure_stands_without_its_data(page):
    text = figures.bare(PAGES[page].read_text())
    for pattern, _ in SAID:
        text = re.sub(pattern, "", text)
    assert not [
        (m[0], line) for line in text.splitlines() for m in LOOKS.finditer(line)
    ]
