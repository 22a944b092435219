"""The figures of a prediction, by hand and beside what was measured; what it takes."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import predict_check
from jaxcomp.cli.predict import as_json, lines_of, read_tree, verdict
from jaxcomp.wire import cost
from jaxcomp.wire.cost import Link
from jaxcomp.wire.predict import USUAL, make_method, predict

TREE = {"b": (1000,), "w": (200, 300)}
LINK = Link(bandwidth=1e6, latency=1e-3)


def predicted(*methods, tree=TREE, link=LINK, compute=1.0, local=None, **others):
    """A prediction with known local times, in the order of the methods."""
    times = [0.0] * (1 + len(methods)) if local is None else local
    known = {"link": link, "compute": compute, "local": lambda every, spec: times}
    return predict(tree, list(methods), **known, **others)


def test_the_figures_are_those_of_the_model():
    """61,000 numbers between four workers, by hand."""
    found = predicted("sign", workers=4, compute=0.5, local=[0.01, 0.03])
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
    assert found.helps
    assert "sign makes the step" in verdict(found)


def test_it_is_said_when_nothing_helps():
    fast = Link(bandwidth=1e9)
    slow = {"link": fast, "workers": 4, "compute": 0.5, "local": [0.0, 0.1]}
    found = predicted("sign", **slow)
    assert not found.helps
    assert found.rows[0].method == "exact"
    said = verdict(found)
    assert said.startswith("Nothing here helps")
    assert "below" in said
    never = predicted("none", **slow)
    assert "never" in "\n".join(lines_of(never))
    assert "below" not in verdict(never)


def test_workers_of_a_host_share_its_link():
    one, two = (predicted(workers=8, per_host=share) for share in (1, 4))
    # A ring leaves each host over one edge, whoever is on it.
    assert two.exact.exchange.nbytes == one.exact.exchange.nbytes
    method = "hierarchical(per_host=4): top_k(keep=0.01)"
    inner = predicted(method, workers=8, per_host=4, inside=Link(1e3))
    assert inner.exact.method == inner.rows[0].method


def test_infinity_is_null_in_json():
    found = predicted("sign")
    rows = as_json(found)["rows"]
    assert math.isinf(found.rows[0].break_even)
    by_method = {row["method"]: row["break_even"] for row in rows}
    assert by_method == {"sign": None, "exact": 0.0}
    json.dumps(rows, allow_nan=False)


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


# --- Methods in one line, and the trees that people name -----------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("exact", "exact"),
        ("sign", "error_feedback: gather(whole_tree: sign)"),
        ("none: sign", "gather(whole_tree: sign)"),
        ("per_leaf: sign", "error_feedback: gather(sign)"),
        (
            "cast(bfloat16)",
            "error_feedback: gather(whole_tree: cast(dtype='bfloat16'))",
        ),
        ("power_sgd(rank=2)", "error_feedback: power_sgd(rank=2)"),
        ("svd(rank=1)", "error_feedback: gather(svd(rank=1))"),
        ("dgc: sparse_reduce: top_k", "dgc: sparse_reduce(whole_tree: "),
        ("qsgd(levels=7)", "gather(whole_tree: qsgd(levels=7, bucket=512))"),
        ("two_phase: qsgd(levels=7, norm='max')", "two_phase(whole_tree: qsgd("),
    ],
)
def test_a_method_is_one_line(text, name):
    spec = {"w": jax.ShapeDtypeStruct((80, 90), jnp.float32)}
    assert make_method(text, spec).name.startswith(name)


def test_the_usual_methods_are_valid_and_begin_with_the_baseline():
    spec = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in TREE.items()}
    names = [make_method(text, spec).name for text in USUAL]
    assert names[0] == "exact"
    assert len(set(names)) == len(names)


def test_arrays_and_names_are_trees():
    arrays = {"w": np.zeros((4, 4), np.float32)}
    assert predicted(tree=arrays).elements == 16
    named = predicted(tree="resnet50")
    assert (named.elements, named.tensors) == (25_557_032, 161)


def test_trees_of_the_command_line():
    assert predicted(tree=read_tree("[(3, 4), ()]")).elements == 13
    assert predicted(tree=read_tree('{"w": [3, 4]}')).elements == 12
    params = jax.tree.leaves(read_tree("tiny"))
    assert all(leaf.dtype == jnp.float32 for leaf in params)
