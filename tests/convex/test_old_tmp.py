"""Convex runs: end to end, through interruptions, and against NumPy."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxcomp
from benchmarks import convex as benchmark
from configs.convex import base
from jaxcomp import convex
from jaxcomp.cli import train
from jaxcomp.convex import record, runner
from jaxcomp.convex.setting import build, partition_of
from jaxcomp.convex.simulation import batches_between, make_simulation
from jaxcomp.report.convex_plot import Block, plot_suboptimality
from jaxcomp.training import Interrupted

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "convex").glob("*.py"))
CONFIGS = [path for path in CONFIGS if path.stem != "__init__"]
LINE = next(line for line in benchmark.LINES if line.config == benchmark.BASELINE)


def small(**changes: Any) -> Any:
    """Four workers, 30 features, 30 steps, a second of work."""
    config = base.get_config()
    config.update(
        problem="breast_cancer(regulariser=0.01)",
        workers=4,
        batch_size=4,
        mixer="choco(gamma=0.2)",
        compressor="top_k(keep=0.1)",
        learning_rate="decay(a=1, tau=1000)",
        average="quadratic(tau=1000)",
        train_for="30 steps",
        seeds=1,
        eval_every="10 steps",
        checkpoint_every="20 steps",
    )
    config.lock()
    config.update(changes)
    return config


def centralised(**changes: Any) -> Any:
    usual = {"mixer": "", "topology": "", "exchange": "exact", "compressor": "none"}
    return small(**(usual | changes))


def stop_at(monkeypatch: pytest.MonkeyPatch, evaluation: int) -> None:
    """Let the run be told to stop after an evaluation, as by SIGTERM."""
    asked: list[int] = []

    @contextlib.contextmanager
    def signals() -> Iterator[Any]:
        yield lambda: asked.append(1) or (15 if len(asked) == evaluation else None)

    monkeypatch.setattr(runner, "catch_signals", signals)


def arrays(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "state.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two seeds; copied by who changes it."""
    folder = tmp_path_factory.mktemp("finished")
    runner.run(small(seeds=2), folder)
    return folder


def test_a_run_end_to_end(finished, capsys):
    assert train.run(small(seeds=2), str(finished)) == 0  # it has ended, and says how
    shown = capsys.readouterr().out
    rows = record.read_rows(finished / "metrics.csv")
    ends = [row.suboptimality for row in rows if row.step == 30]
    assert f"suboptimality  {np.median(ends):.3g} (2 seeds, " in shown
    assert "would have sent 1.2 kB (6x less than without compression)" in shown
    steps = [10, 20, 30]
    assert [(r.seed, r.step) for r in rows] == [(s, t) for s in (0, 1) for t in steps]
    for row in rows:
        assert 0 < row.suboptimality < row.worst_suboptimality < 1
        assert row.consensus_distance > 0
        assert row.epoch == pytest.approx(row.step / 142)
        assert row.learning_rate == pytest.approx(100 / (row.step - 1 + 1000))
    assert rows[0].suboptimality != rows[3].suboptimality
    assert json.loads((finished / "config.json").read_text())["workers"] == 4
    assert json.loads((finished / "environment.json").read_text())["simulated"] is True


def assert_same_run(a: Path, b: Path) -> None:
    """To the bit, but for the time."""
    whole, parts = arrays(a), arrays(b)
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array, err_msg=name)
    assert (a / "metrics.csv").read_bytes() == (b / "metrics.csv").read_bytes()


# At the second evaluation nothing is due to be saved but for the signal.
@pytest.mark.parametrize("evaluation", [1, 5])
def test_an_interrupted_run_goes_on_to_the_bit(
    evaluation, finished, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_at(patch, evaluation)
        with pytest.raises(Interrupted, match="stopped at step"):
            runner.run(small(seeds=2), tmp_path)
    assert len(record.read_rows(tmp_path / "metrics.csv")) == evaluation
    runner.run(small(seeds=2), tmp_path)
    assert_same_run(finished, tmp_path)


TURNS = {"mixer": "d_psgd", "compressor": "none", "topology": "exponential"}
MEMORY = {
    "mixer": "",
    "topology": "",
    "exchange": "gather",
    "compressor": "sign",
    "memory": "error_feedback",
}


@pytest.mark.parametrize("changes", [TURNS, MEMORY], ids=["turns", "memory"])
def test_all_of_the_state_is_saved(changes, tmp_path, monkeypatch):
    config = small(**changes)
    runner.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        with pytest.raises(Interrupted):
            runner.run(config, tmp_path / "parts")
    runner.run(config, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    # The step's number is one for all workers: a mixer that takes turns then runs one
    # program a step, and not all of them to choose from.
    assert arrays(tmp_path / "parts")["crew.link.step"].shape == ()


def test_a_signal_is_an_exit_code(tmp_path, monkeypatch, capsys):
    stop_at(monkeypatch, 1)
    assert train.run(small(), str(tmp_path)) == 128 + 15
    assert "Go on with the same command" in capsys.readouterr().err


def test_rows_after_the_saved_state_are_written_again(finished, tmp_path):
    """A kill between two saves leaves rows that the state does not know."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    table = (tmp_path / "metrics.csv").read_bytes()
    (tmp_path / "metrics.csv").write_bytes(table + table.splitlines()[-1] + b"\r\n1,4")
    runner.run(small(seeds=2), tmp_path)
    assert (tmp_path / "metrics.csv").read_bytes() == table


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_state_does_not_count(damage, finished, tmp_path):
    content = bytearray((finished / "state.npz").read_bytes())
    if damage == "changed":
        content[content.index(arrays(finished)["crew.models"].tobytes())] ^= 1
    else:
        del content[len(content) // 2 if damage == "cut" else 0 :]
    file = tmp_path / "state.npz"
    file.write_bytes(bytes(content))
    like = make_simulation(build(small())).start()
    with pytest.warns(RuntimeWarning, match="is damaged .*: the run starts again"):
        assert record.load_state(file, like) is None
    found = record.load_state(finished / "state.npz", like)
    assert found is not None
    assert found[1:] == (1, 30, 6)


def test_a_state_of_another_shape_does_not_count(finished):
    like = make_simulation(build(small(workers=3, batch_size=3))).start()
    with pytest.warns(RuntimeWarning, match=r"crew.models is \(4, 30\), not \(3, 30\)"):
        assert record.load_state(finished / "state.npz", like) is None


def test_rows_that_are_gone_start_the_run_again(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics.csv").unlink()
    runner.run(small(seeds=2), tmp_path)
    assert_same_run(finished, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": "digit"}, "unknown convex problem 'digit'. Did you mean 'digits'"),
        ({"problem": "libsvm(path='no.txt')"}, "no.txt"),
        ({"problem": "digits | digits"}, "a convex problem is one name"),
        ({"mixer": "chocco"}, "unknown mixer 'chocco'. Did you mean 'choco'"),
        ({"partition": "sort"}, "unknown partition 'sort'. Did you mean 'sorted'"),
        ({"partition": "dirichlet(alpha=0)"}, "alpha is a number above 0"),
        ({"partition": "dirichlet(0.1)"}, "options of a partition have names"),
        ({"topology": ""}, "choco needs a topology, such as 'ring'"),
        ({"mixer": "", "exchange": "exact"}, "topology 'ring' is of no use"),
        ({"learning_rate": "decai"}, "unknown learning rate 'decai'"),
        ({"average": "means"}, "unknown average 'means'"),
        ({"batch_size": 6}, "a batch of 6 does not divide over 4 workers"),
        ({"batch_size": 4000}, "a batch of 4000 is more than 569 examples"),
        ({"train_for": "two epochs"}, "not a number"),
        ({"eval_every": ""}, "train_for and eval_every are durations"),
        ({"seeds": 0}, "seeds are 1 or more"),
        ({"regulariser": 0.5}, "regulariser stands here and in the config"),
        ({"memory": "error_feedback"}, "it takes no exchange, no memory"),
        ({"mixer": "", "topology": "", "exchange": "gahter"}, "Did you mean 'gather'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_mistakes_are_one_message(changes, message, tmp_path, capsys):
    assert train.run(small(**changes), str(tmp_path / "run")) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "run").exists()


def test_a_convex_run_has_nothing_to_evaluate_later(tmp_path, capsys):
    assert train.run(small(), str(tmp_path), evaluate="best") == 1
    assert "metrics.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": "constant(rate=1e6)"}, {"learning_rate": "constant(rate=1e30)"}],
    ids=["large", "infinite"],
)
def test_divergence_says_when_and_what_to_lower(changes, tmp_path, capsys):
    assert train.run(small(**changes), str(tmp_path)) == 1
    shown = capsys.readouterr().err
    assert "diverged by step 10 (seed 0)" in shown
    assert "Lower learning_rate='constant(rate=1e" in shown
    assert "or the gamma of the mixer" in shown


def test_the_regulariser_of_the_config_is_that_of_the_problem():
    setting = build(small(problem="breast_cancer", regulariser=0.5))
    assert setting.problem.regulariser == 0.5


@pytest.mark.parametrize("partition", ["random", "sorted"])
def test_choco_comes_near_the_optimum(partition, tmp_path):
    config = small(train_for="15 epochs", eval_every="5 epochs", partition=partition)
    result = runner.run(config, tmp_path)
    found = [row.suboptimality for row in result.rows]
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.01 * result.start


def test_centralised_exact_is_minibatch_sgd(tmp_path):
    """30 steps in NumPy, float64, with the same batches."""
    config = centralised(train_for="30 steps", batch_size=8, average="mean")
    runner.run(config, tmp_path)
    setting = build(config)
    problem = setting.problem
    divided = partition_of(config, problem.labels, config.seed)
    batches = batches_between(divided, config.batch_size, 0, 30).reshape(30, -1)
    x, iterates = np.zeros(problem.dimension), []
    for t, batch in enumerate(batches):
        a, b = problem.features[batch].astype(np.float64), problem.labels[batch]
        pulled = a.T @ (-b / (1 + np.exp(b * (a @ x)))) / len(batch)
        x = x - 1 / (0.01 * (t + 1000)) * (pulled + 0.01 * x)
        iterates.append(x)
    stored = arrays(tmp_path)
    for worker in range(4):
        np.testing.assert_allclose(
            stored["crew.models"][worker], x, rtol=2e-4, atol=1e-5
        )
        mean = np.mean(iterates, axis=0)
        np.testing.assert_allclose(
            stored["crew.averages"][worker], mean, rtol=2e-4, atol=1e-5
        )


@pytest.mark.parametrize("compressor", ["top_k(keep=0.1)", "qsgd(levels=7)", "sign"])
def test_bytes_are_those_of_the_payload(compressor):
    traffic = build(small(compressor=compressor)).traffic
    x = jax.ShapeDtypeStruct((30,), np.float32)
    method = jaxcomp.make_compressor(compressor)
    payload = jax.eval_shape(method.compress, x, (), jax.random.key(0))[0]
    neighbours = 2
    each = jaxcomp.nbits(payload) / 8
    for step in (1, 7):
        words = traffic.sent(step) / step / neighbours
        assert each <= words < each + 4 * len(jax.tree.leaves(payload))
    assert traffic.plain == (2 * 4 * 30,)


def test_bytes_follow_the_turns_of_a_mixer():
    """Local SGD sends at every third step alone."""
    config = small(
        mixer="local_sgd(h=3)", topology="", exchange="exact", compressor="none"
    )
    traffic = build(config).traffic
    assert traffic.wire == (0, 0, 120)
    assert [traffic.sent(t) for t in (2, 3, 5, 6)] == [0, 120, 120, 240]


def test_batches_run_through_epochs():
    config = small()
    divided = partition_of(config, build(config).problem.labels, 0)
    whole = batches_between(divided, 4, 0, 300)
    assert whole.shape == (300, 4, 1)
    parts = [batches_between(divided, 4, a, b) for a, b in ((0, 140), (140, 300))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_sparse_problems_run(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(40):
        places = np.sort(rng.choice(np.arange(1, 10), size=3, replace=False))
        pairs = " ".join(f"{place}:{rng.normal():.3f}" for place in places)
        lines.append(f"{rng.choice([-1, 1])} {pairs}\n")
    file = tmp_path / "few.txt"
    file.write_text("".join(lines))
    config = small(problem=f"libsvm(path={str(file)!r}, regulariser=0.1)")
    result = runner.run(config, tmp_path / "run")
    assert 0 < result.finals[0].suboptimality < result.start


def test_digits_with_products():
    problem = convex.load("digits(pairs=True)")
    rows, bias = problem.features[:, :-1], problem.features[:, -1]
    assert problem.name == "digits(pairs=True)"
    assert (bias == bias[0]).all()
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(rows.std(axis=0), bias[0], rtol=1e-4)
    length = np.square(problem.features, dtype=np.float64).sum(axis=1)
    assert length.mean() == pytest.approx(1, rel=1e-5)
    with pytest.raises(ValueError, match="pairs is True or False, not 1"):
        convex.load("digits(pairs=1)")


def test_the_plot_and_the_levels(finished):
    rows = record.read_rows(finished / "metrics.csv")[:3]
    found = [benchmark._joined("random", "d_psgd", "method", [row]) for row in rows]
    blocks = [Block("At random", [benchmark._curve(found, "random", LINE)])]
    figure = plot_suboptimality(blocks)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "sent by one worker since the start",
        "steps",
    ]
    assert len(figure.axes[0].lines) == 1
    level = rows[1].suboptimality
    assert benchmark.reached(found, level) == found[1]
    assert benchmark.reached(found, level / 1e9) is None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_says_what_it_is_and_runs(path, tmp_path):
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    config = scope["get_config"]()
    assert set(config.keys()) == set(base.get_config().keys())
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
    assert f"--config=configs/convex/{path.name} --workdir=" in header
    config.update(problem="breast_cancer", train_for="2 steps", seeds=1)
    assert len(runner.run(config.lock(), tmp_path).rows) == 1
