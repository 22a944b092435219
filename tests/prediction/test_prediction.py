"""What a prediction says: by hand, of methods, of trees, and of programs run alone."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomp
from benchmarks import predict_check
from jaxcomp import UserError, cost, shapes, targets, wire
from jaxcomp.cli import main
from jaxcomp.cost import Link
from jaxcomp.prediction import measuring, on_target, predict
from jaxcomp.prediction.alone import alone
from jaxcomp.prediction.methods import USUAL, make_method
from jaxcomp.prediction.processes import loopback_seconds
from jaxcomp.prediction.table import as_json, draw, lines_of, verdict
from jaxcomp.prediction.trees import read_tree
from jaxcomp.targets import devices
from tests.every_method import EXCHANGES, WORKERS, exchange, trees
from tests.targets.test_reading import GPU

TREE = {"b": (1000,), "w": (200, 300)}
LINK = Link(bandwidth=1e6, latency=1e-3)


def told(*seconds):
    """Local times that somebody knows, in the order of the methods."""
    return lambda every, spec: list(seconds)


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_worker_alone_computes_all_shapes_of_its_exchange(name):
    built, tree = exchange(name), trees()
    step, state = measuring.step_of(built), measuring.start_of(built, tree)
    run = alone(step, state, tree, axis="workers", workers=WORKERS)
    mapped = jax.vmap(step, axis_name="workers", axis_size=WORKERS, in_axes=None)
    whole = jax.eval_shape(mapped, state, tree)
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), whole)
    assert jax.eval_shape(run, state, tree) == own


def test_a_worker_alone_decodes_what_equal_workers_would_send():
    """All messages are copies of its own, so it gets what equal workers get."""
    built = jaxcomp.make_exchange("gather", "top_k(keep=0.2)", "none", "whole_tree")
    tree, step = trees(), measuring.step_of(built)
    state = (jnp.int32(0), built.init(tree))
    run = alone(step, state, tree, axis="workers", workers=WORKERS)
    mean, (count, _) = jax.jit(run)(state, tree)
    mapped = jax.vmap(step, axis_name="workers", axis_size=WORKERS, in_axes=None)
    expected, _ = jax.jit(mapped)(state, tree)
    for own, equal in zip(*map(jax.tree.leaves, (mean, expected)), strict=True):
        np.testing.assert_allclose(own, equal[0], rtol=1e-6)
    assert int(count) == 1
    assert not wire.collective_bytes(jax.jit(run).lower(state, tree).compile())


def test_collectives_in_loops_and_branches_are_replaced():
    def step(x):
        def body(total, row):
            return total + jax.lax.psum(row, "i"), jax.lax.axis_index("i")

        total, places = jax.lax.scan(body, x[0], x)
        both = (lambda y: jax.lax.pmax(y, "i"), lambda y: y)
        return jax.lax.cond(total[0] > 0, *both, total), places

    x = jnp.arange(6.0).reshape(3, 2)
    total, places = alone(step, x, axis="i", workers=4)(x)
    np.testing.assert_array_equal(total, x[0] + x.sum(0))
    np.testing.assert_array_equal(places, [0, 0, 0])

    def endless(x):
        return jax.lax.while_loop(
            lambda y: y.sum() < 9, lambda y: y + jax.lax.psum(y, "i"), x
        )

    with pytest.raises(UserError, match="'while'"):
        alone(endless, x, axis="i", workers=4)(x)


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


def test_what_is_measured_here_is_positive_and_for_all_who_share(monkeypatch):
    monkeypatch.setattr(measuring, "_LONGEST", 0.01)
    for sharing in (1, 2):
        found = predict(
            *(TREE, ["top_k(keep=0.1)", "two_phase: sign"]),
            link=LINK,
            workers=4,
            compute=0.1,
            sharing=sharing,
        )
        assert all(0 < row.exchange.local < 10 for row in found.rows)
    with pytest.raises(UserError, match="99 workers that share"):
        predict(TREE, [], link=LINK, compute=0.1, sharing=99)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sing", "no method is called 'sing'. Did you mean 'sign'"),
        (
            "tow_phase: sign",
            "before a colon, not 'tow_phase'. Did you mean 'two_phase'",
        ),
        ("dgc: ef21: sign", "names two of a kind: dgc and ef21"),
        ("error_feedback: qsgd(levels=7)", None),
        ("", "not a spec"),
    ],
)
def test_wrong_methods_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        predict(TREE, [text], link=LINK, workers=4, compute=1, local=told(0, 0))


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


def test_arrays_and_names_are_trees():
    arrays = {"w": np.zeros((4, 4), np.float32)}
    found = predict(arrays, [], link=LINK, compute=1, local=told(0))
    assert found.elements == 16
    named = predict("resnet50", [], link=LINK, compute=1, local=told(0))
    assert (named.elements, named.tensors) == (25_557_032, 161)


def test_published_models_have_their_published_size():
    counts = {name: shapes.elements(shapes.tree(name)) for name in ("vgg16", "gpt2")}
    assert counts == {"vgg16": 138_357_544, "gpt2": 124_439_808}
    assert len(shapes.tree("gpt2")) == 148
    assert len(shapes.tree("vgg16", 0.1)) == 32


def test_trees_of_the_command_line(tmp_path):
    assert read_tree("[(3, 4), ()]") == [(3, 4), ()]
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps({"w": [3, 4]}))
    assert read_tree(str(file)) == {"w": (3, 4)}
    file.write_text("[[3], [4, 5]]")
    assert read_tree(str(file)) == [(3,), (4, 5)]
    params = jax.tree.leaves(read_tree("tiny"))
    assert all(leaf.dtype == jnp.float32 for leaf in params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet5", "unknown model 'resnet5'. Did you mean 'resnet"),
        ("[(3, x)]", "no list of shapes"),
        ("[3]", "whole numbers, not 3"),
        ("[(-1,)]", "whole numbers"),
        ("nowhere.json", "nowhere.json: No such file"),
    ],
)
def test_wrong_trees_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        read_tree(text)


def test_traffic_counts_kernels_and_loops_but_no_collectives():
    """A pass that reads and writes 8 floats, in a loop of three rounds."""
    text = """HloModule m

%body (s: f32[8]) -> f32[8] {
  %s = f32[8]{0} parameter(0)
  ROOT %t = f32[8]{0} negate(f32[8]{0} %s)
}

ENTRY %main {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} while(%x), condition=%c, body=%body, TRIPS
  %z = f32[8]{0} all-reduce(%y), to_apply=%add
  ROOT %r = (f32[8]{0}, pred[8]{0}) fusion(%z, %y), kind=kLoop, calls=%body
}

%c (s: f32[8]) -> pred[] {
  ROOT %p = pred[] constant(true)
}
"""
    counted = text.replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')
    last = 32 + 8 + 32 + 32
    assert targets.memory_traffic(counted) == 3 * 64 + last
    assert targets.memory_traffic(text.replace(", TRIPS", "")) == 64 + last
    assert targets.memory_traffic(GPU) > 0


def test_a_target_needs_its_compiler_and_a_known_memory(monkeypatch):
    monkeypatch.setattr(devices, "missing", lambda name: "install it")
    with pytest.raises(UserError, match="install it"):
        on_target.target_seconds("a100", workers=8)
    with pytest.raises(UserError, match="no memory bandwidth is known of 'v5e'"):
        on_target.target_seconds("v5e", workers=8)


COMMAND = ["predict", "--bandwidth=1Mbit", "--workers=4", "--compute=100ms"]
SMALL = ["--model=[(300, 40), (40,)]", "--methods", "sign", "top_k(keep=0.1)"]


def test_the_command_prints_a_table_and_a_verdict(capsys, tmp_path):
    plot = tmp_path / "steps.svg"
    assert main([*COMMAND, *SMALL, f"--plot={plot}"]) == 0
    printed = capsys.readouterr().out
    assert "12,040 numbers in 2 tensors, 48.2 kB" in printed
    assert "100 ms a step, as you say" in printed
    assert "one worker has all" in printed
    table = printed.split("\n\n")[1].splitlines()
    assert {line.split()[0] for line in table[1:]} == {
        "exact",
        "sign",
        "top_k(keep=0.1)",
    }
    assert "times as fast" in printed
    assert plot.read_text().startswith("<?xml")


def test_the_command_answers_programs(capsys):
    assert main([*COMMAND, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["helps"] is True
    assert found["link"]["bandwidth"] == 125_000
    steps = [row["step"] for row in found["rows"]]
    assert steps == sorted(steps)
    assert {row["method"] for row in found["rows"]} == {"exact", *SMALL[2:]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bandwidth=1Gbit"], "give --model or --config"),
        (["--model=resnet50", "--bandwidth=1"], "--bandwidth is a number with one of"),
        (["--model=a", "--bandwidth=1MB", "--sed=1"], "unknown argument '--sed=1'"),
        (["--model=[(3,)]", "--bandwidth=1MB", "--latency=3"], "--latency is a number"),
        (["--model=[(3,)]", "--bandwidth=1MB", "--plot=a.gif"], "a plot is one of"),
        (["--model=resnet51", "--bandwidth=1MB"], "unknown model 'resnet51'"),
    ],
)
def test_wrong_words_are_refused(words, message, capsys):
    assert main(["predict", "--methods", "none", *words]) == 2
    assert message in capsys.readouterr().err


def test_infinity_is_null_in_json():
    found = predict(TREE, ["sign"], link=LINK, compute=1, local=told(0, 0))
    rows = as_json(found)["rows"]
    assert math.isinf(found.rows[0].break_even)
    by_method = {row["method"]: row["break_even"] for row in rows}
    assert by_method == {"sign": None, "exact": 0.0}
    json.dumps(rows, allow_nan=False)


def test_a_plot_has_a_line_for_each_method(tmp_path):
    found = predict(TREE, ["sign"], link=LINK, compute=1, local=told(0, 0))
    draw(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_config_says_model_method_and_compute(capsys):
    words = ["--config=configs/default.py", "--bandwidth=100Mbit", "--workers=4"]
    small = ["--config.model=tiny(width=2)", "--config.dataset=digits(size=8)"]
    assert main(["predict", *words, *small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "measured here" in found["compute_is"]
    methods = [row["method"] for row in found["rows"]]
    assert "error_feedback: gather: per_leaf: top_k(keep=0.02)" in methods


@pytest.mark.slow
def test_local_processes_exchange_for_real():
    spec = [jax.ShapeDtypeStruct((300, 40), jnp.float32)]
    found = loopback_seconds(["exact", "sign"], spec, workers=2)
    assert set(found) == {"exact", "sign"}
    assert all(0 < seconds < 60 for seconds in found.values())
    with pytest.raises(UserError, match="local processes ended"):
        loopback_seconds(["sing"], spec, workers=2)


def test_the_check_of_predictions_finds_order_and_error(tmp_path, capsys):
    """Two methods that were measured by hand: one as predicted, one twice as slow."""
    file = tmp_path / "network.csv"
    file.write_text(
        "method,workers,elements,rate,measured,ms\n"
        "exact,4,25557032,100,80,17333.4\n"
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
