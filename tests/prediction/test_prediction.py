"""The figures of a prediction, by hand, and beside what was measured."""

import json
import math

import pytest

from benchmarks import predict_check
from jaxcomp import UserError
from jaxcomp.cli.prediction import as_json, draw, lines_of, verdict
from jaxcomp.wire import cost
from jaxcomp.wire.cost import Link
from jaxcomp.wire.predict import predict

TREE = {"b": (1000,), "w": (200, 300)}
LINK = Link(bandwidth=1e6, latency=1e-3)


def told(*seconds):
    """Local times that somebody knows, in the order of the methods."""
    return lambda every, spec: list(seconds)


def test_the_figures_are_those_of_the_model():
    """61,000 numbers between four workers, by hand."""
    found = predict(
        TREE, ["sign"], link=LINK, workers=4, compute=0.5, local=told(0.01, 0.03)
    )
    exact, sign = found.exact, found.rows[0]
    assert (found.elements, found.tensors, found.dense) == (61_000, 2, 244_000)
    # One ring of 6 rounds, in which 3/4 of the gradient leaves a worker twice.
    assert exact.exchange.rounds == 6
    assert exact.exchange.nbytes == pytest.approx(1.5 * 244_000)
    assert exact.step == pytest.approx(0.5 + 0.366 + 0.006 + 0.01)
    message = 3 * sum(c.nbytes for c in sign.collectives)
    assert 3 * 61_000 / 8 < message < 3 * 61_000 / 8 + 100
    assert sign.step == pytest.approx(0.5 + message / 1e6 + 0.003 + 0.03)
    assert sign.speedup == pytest.approx(exact.step / sign.step)
    at = cost.cost(sign.collectives, Link(sign.break_even, 1e-3), local=0.03).seconds
    dense = cost.cost(exact.collectives, Link(sign.break_even, 1e-3), local=0.01)
    assert at == pytest.approx(dense.seconds)
    for share, rate in zip((0.5, 0.75, 0.9), sign.needed, strict=True):
        seconds = cost.cost(sign.collectives, Link(rate, 1e-3), local=0.03).seconds
        assert 0.5 / (0.5 + seconds) == pytest.approx(share)
    assert found.helps
    assert "sign makes the step" in verdict(found)


def test_it_is_said_when_nothing_helps():
    fast = Link(bandwidth=1e9)
    found = predict(
        TREE, ["sign"], link=fast, workers=4, compute=0.5, local=told(0.0, 0.1)
    )
    assert not found.helps
    assert found.rows[0].method == "exact"
    said = verdict(found)
    assert said.startswith("Nothing here helps")
    assert "below" in said
    never = predict(
        TREE, ["none"], link=fast, workers=4, compute=0.5, local=told(0.0, 0.1)
    )
    assert "never" in "\n".join(lines_of(never))
    assert "below" not in verdict(never)


def test_workers_of_a_host_share_its_link():
    one = predict(TREE, [], link=LINK, workers=8, compute=1, local=told(0))
    two = predict(
        *(TREE, []), link=LINK, workers=8, per_host=4, compute=1, local=told(0)
    )
    # A ring leaves each host over one edge, whoever is on it.
    assert two.exact.exchange.nbytes == one.exact.exchange.nbytes
    slow = Link(1e3)
    inner = predict(
        *(TREE, ["hierarchical(per_host=4): top_k(keep=0.01)"]),
        link=LINK,
        workers=8,
        per_host=4,
        inside=slow,
        compute=1,
        local=told(0, 0),
    )
    assert inner.exact.method == inner.rows[0].method


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 1}, "2 at least"),
        ({"workers": 6, "per_host": 4}, "a multiple"),
        ({"compute": 0}, "compute is a positive"),
        ({"tree": "resnet5"}, "unknown tree 'resnet5'"),
        ({"tree": {}}, "no leaves"),
        ({"tree": ["a"]}, "arrays, specs or shapes"),
    ],
)
def test_wrong_numbers_and_trees_are_refused(changes, message):
    given = {"tree": TREE, "methods": [], "link": LINK, "workers": 4, "compute": 1}
    with pytest.raises(UserError, match=message):
        predict(**{**given, "local": told(0), **changes})


def test_infinity_is_null_in_json():
    found = predict(TREE, ["sign"], link=LINK, compute=1, local=told(0, 0))
    rows = as_json(found)["rows"]
    assert math.isinf(found.rows[0].break_even)
    by_method = {row["method"]: row["break_even"] for row in rows}
    assert by_method == {"sign": None, "exact": 0.0}
    json.dumps(rows, allow_nan=False)


def test_a_plot_has_a_line_for_each_method(tmp_path):
    found = predict(TREE, ["sign"], link=LINK, compute=1, local=told(0, 0))
    draw(found, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count('<g class="series') == len(found.rows) == 2


def test_the_check_of_predictions_finds_order_and_error(tmp_path, capsys):
    """Two methods that were measured by hand: one as predicted, one twice as slow."""
    file = tmp_path / "network.csv"
    file.write_text(
        "method,workers,elements,rate,measured,ms\n"
        "exact,4,25557032,100,80,17334.22\n"
        "sign,4,25557032,100,80,200\n"
        "DDP,4,25557032,100,80,1\n"
    )
    rows = predict_check.read(file)
    points = predict_check.compare(rows, {"exact": 2.0, "sign": 1.0}, compute=0.2)
    exact, sign = points
    assert exact.off == pytest.approx(0, abs=1e-5)
    assert sign.predicted == pytest.approx(0.2 + 1.0 + 3 * 3_194_636 / 1e7, rel=1e-3)
    predict_check.show(points)
    printed = capsys.readouterr().out
    assert "the same order; not within 30 %" in printed
    with pytest.raises(SystemExit, match="no row of these methods"):
        predict_check.read(file, ["power"])
