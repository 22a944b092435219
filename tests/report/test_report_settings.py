"""What runs are called on a page that compares them: by what they make use of."""

import re
from typing import Any

import pytest

import jaxcomp
from jaxcomp.report.figures import group_runs
from jaxcomp.report.page import breaking
from jaxcomp.report.run_folder import Run, settings_of
from tests.every_method import ARGUMENTS, COMPRESSORS, EXCHANGES

USUAL = {
    **{"exchange": "gather", "compressor": "top_k(keep=0.01)", "scope": "whole_tree"},
    **{"memory": "error_feedback", "policy": [], "workers": 4},
}


def labels(*runs: Run) -> list[str]:
    return [group.label for group in group_runs(runs)]


def run(method: str = "", sweep: Any = None, **config: Any) -> Run:
    facts = {"method": method} | ({"sweep": sweep} if sweep else {})
    return Run(f"{config}", USUAL | config, facts, {})


def test_a_run_that_does_not_compress_is_called_exact() -> None:
    compressed = run("error_feedback: gather(top_k(keep=0.01))")
    assert labels(compressed, run("error_feedback: exact", exchange="exact")) == [
        "top_k(keep=0.01), gather",
        "exact",
    ]
    others = {"compressor": "sign", "memory": "none", "scope": "per_leaf"}
    assert labels(run(**others), run(exchange="exact")) == ["sign, gather", "exact"]


def test_a_momentum_of_a_memory_is_used_without_compression() -> None:
    exact = {"exchange": "exact"}
    found = labels(run(**exact, memory="local_momentum"), run(**exact, memory="none"))
    assert found == ["local_momentum", "memory none"]


def test_exact_runs_that_differ_in_a_compressor_are_repetitions() -> None:
    one, other = (run(exchange="exact", compressor=c) for c in ("sign", "none"))
    [group] = group_runs([one, other, run()][:2])
    assert len(group.runs) == 2


def test_an_exchange_with_a_way_of_its_own_is_called_by_that() -> None:
    method = "error_feedback: power_sgd(rank=2)"
    found = labels(run(method, exchange="power_sgd(rank=2)"), run())
    assert found == ["power_sgd(rank=2)", "top_k(keep=0.01), gather"]
    other = run("power_sgd(rank=2)", exchange="power_sgd(rank=2)", memory="none")
    [kept, _, lost] = group_runs(
        [run(method, exchange="power_sgd(rank=2)"), run(), other]
    )
    assert kept.label == "power_sgd(rank=2), error_feedback"
    assert (kept.short, lost.label) == (
        "power_sgd, error_feedback",
        "power_sgd(rank=2)",
    )


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_name_of_a_method_says_whether_it_uses_its_compressor(name: str) -> None:
    compressor = COMPRESSORS.get(name, "sign")
    spec = name + ARGUMENTS.get(name, "")
    if compressor == "none":
        method = jaxcomp.make_exchange(spec, memory="none").name
        found = settings_of(run(method, exchange=spec, compressor="top_k(keep=0.5)"))
        assert found.of("compressor") == "none"
        return
    built = jaxcomp.make_exchange(spec, compressor, memory="none").name
    found = settings_of(run(built, exchange=spec, compressor=compressor))
    assert found.of("compressor") == compressor


def test_what_a_sweep_calls_a_run_wins() -> None:
    def told(label: str) -> dict[str, Any]:
        keys = ["compressor", "exchange", "memory"]
        return {"labels": {"method": label}, "keys": keys}

    signs = {"compressor": "sign", "memory": "none"}
    runs = [
        run(sweep=told("top-k of 1 %"), workers=2),
        run(sweep=told("signs"), workers=4, **signs),
        run(exchange="exact"),  # of no sweep
    ]
    assert labels(*runs) == [
        "top-k of 1 %, workers=2",
        "signs, workers=4",
        "exact, workers=4",
    ]


def test_texts_break_at_the_joints_of_names_and_numbers_do_not() -> None:
    text = str(breaking("error_feedback: a(b=1,c=2)|d, 1,234 /x/y <"))
    assert re.split("<wbr>", text) == [
        *("error_", "feedback: a", "(b=1,", "c=2)|", "d,", " 1,234 /", "x/", "y &lt;"),
    ]
