"""Where figures go beside the tables: read back by those for whom they are written."""

import json
import math
import re
import sys
import types
import warnings
from pathlib import Path

import pytest

from jaxcomp import UserError
from jaxcomp.runs import loggers
from jaxcomp.runs.loggers import Logger, RunSoFar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorBoard's own
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

EPOCHS = [
    {"epoch": "1", "step": "2", "seconds": "36", "test_accuracy": "0.5"},
    {"epoch": "2", "step": "4", "seconds": "72", "test_accuracy": ""},
]
STEPS = [{"step": "2", "loss": "0.25"}, {"step": "4", "loss": "inf"}]


def opened(folder, *names, start=4, said=None):
    """A logger of a run that goes on."""
    run = RunSoFar(folder, {"seed": 0}, start, EPOCHS, STEPS)
    say = (lambda line: None) if said is None else said.append
    return loggers.opened(loggers.make(names), run, say)


def scalars(folder):
    """What TensorBoard reads: (step, value) of each tag."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = EventAccumulator(str(folder))
        reader.Reload()
        tags = reader.Tags()["scalars"]
        return {tag: [(x.step, x.value) for x in reader.Scalars(tag)] for tag in tags}


# --- TensorBoard --------------------------------------------------------------------


def test_tensorboard_reads_what_was_written(tmp_path):
    logger = opened(tmp_path, "tensorboard", start=0)
    logger.step({"step": 1, "epoch": 1, "loss": 0.5, "rate": 1e-3, "error": math.nan})
    logger.step({"step": 300, "loss": 1e300, "ü": -2.0})
    logger.step({"step": 2**40, "loss": -math.inf})
    logger.epoch({"step": 2**40, "test_accuracy": 0.75, "test_loss": None})
    found = scalars(tmp_path / loggers.FOLDER)  # while the run goes on
    logger.close()
    assert found == {
        "step/loss": [(1, 0.5), (300, math.inf), (2**40, -math.inf)],
        "step/rate": [(1, pytest.approx(1e-3))],
        "step/epoch": [(1, 1)],
        "step/ü": [(300, -2.0)],
        "epoch/test_accuracy": [(2**40, 0.75)],
    }


@pytest.mark.parametrize("lost", [0, 1, 5, 20, 40])
def test_a_kill_loses_what_it_cuts_off_and_a_resume_what_it_repeats(tmp_path, lost):
    """Whatever the clock says: the second file is begun in the same second."""
    first = opened(tmp_path, "tensorboard", start=0)
    for step in range(1, 6):
        first.step({"step": step, "loss": float(step)})
    first.close()
    [path] = (tmp_path / loggers.FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size - lost])
    found = scalars(path.parent)["step/loss"]
    assert found == [(i, float(i)) for i in range(1, 6 - bool(lost))]
    second = opened(tmp_path, "tensorboard", start=3)
    second.step({"step": 4, "loss": 40.0})
    second.close()
    found = scalars(path.parent)["step/loss"]
    assert found == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


# --- Files --------------------------------------------------------------------------


def test_json_lines_have_the_rows_of_both_tables_and_those_to_come(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 99}\n{"ki')
    logger = opened(tmp_path, "jsonl")
    logger.step({"step": 5, "loss": 1 / 3})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    kinds = [(row["kind"], row["step"]) for row in rows]
    assert kinds == [("step", 2), ("epoch", 2), ("step", 4), ("epoch", 4), ("step", 5)]
    assert rows[0]["loss"] == 0.25
    assert rows[2]["loss"] is None  # infinite
    assert rows[4]["loss"] == 0.33333333
    assert "test_accuracy" not in rows[3]


def test_logs_tsv_is_that_of_dawnbench(tmp_path):
    logger = opened(tmp_path, "tsv")
    logger.epoch({"epoch": 3, "step": 6, "seconds": 90.0, "test_accuracy": 0.912345})
    logger.step({"step": 7})
    text = (tmp_path / "logs.tsv").read_text()
    rows = ["epoch hours top1Accuracy", "1 0.01000000 50.00", "3 0.02500000 91.23"]
    assert text.replace("\t", " ").splitlines() == rows
    assert " " not in text


# --- Names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["tensorbord"], "unknown logger 'tensorbord'. Did you mean 'tensorboard'?"),
        (["csv", "csv"], "loggers name 'csv' twice"),
        (["csv(a=1)"], "logger 'csv' has no argument 'a'"),
        (["my.nowhere:logger"], "there is no module 'my'"),
        (["fractions:Fraction(3)"], "makes a value of type Fraction, not a Callable"),
        (["wandb"], "wandb: is not installed: pip install wandb"),
    ],
)
def test_wrong_loggers_are_told(names, says, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError) as error:
        loggers.make(names)
    assert says in str(error.value)


def test_the_logger_of_the_guide_is_one(tmp_path, monkeypatch, capsys):
    guide = Path(__file__).resolve().parents[2] / "docs" / "training.md"
    block = r"```python\n(((?!```).)*?def mine.*?)```"
    program = re.search(block, guide.read_text(), re.DOTALL)
    assert program
    module = types.ModuleType("my_pkg")
    exec(program[1], vars(module))
    monkeypatch.setitem(sys.modules, "my_pkg", module)
    logger = opened(tmp_path, "my_pkg:mine(least_accuracy=0.5)")
    for step, accuracy in [(1, None), (2, 0.4), (3, 0.6)]:
        logger.epoch({"step": step, "test_accuracy": accuracy})
    logger.step({"step": 4})
    assert capsys.readouterr().out == f"{tmp_path} is good at step 3\n"


# --- Trackers -----------------------------------------------------------------------


def failing(at: str, calls: list[str]):
    """The factory of a logger of one's own which fails at one of its functions."""

    def act(name):
        def acted(*_):
            calls.append(name)
            if name == at:
                raise OSError("no network")

        return acted

    def open_(run):
        act("open")()
        return Logger(act("epoch"), act("step"), act("close"))

    return lambda: open_


@pytest.mark.parametrize("at", ["open", "step", "epoch", "close", ""])
def test_an_unreachable_tracker_is_said_once_and_left_out(at, tmp_path, monkeypatch):
    calls, said = [], []
    own = types.SimpleNamespace(tracker=failing(at, calls))
    monkeypatch.setitem(sys.modules, "own_tracker", own)
    logger = opened(tmp_path, "own_tracker:tracker", "jsonl", said=said)
    for _ in range(2):
        logger.step({"step": 5, "loss": 1.0})
        logger.epoch({"step": 5, "epoch": 1})
    logger.close()
    whole = ["open", "step", "epoch", "step", "epoch", "close"]
    assert calls == (whole[: whole.index(at) + 1] if at else whole)
    warning = "logger 'own_tracker:tracker' is left out from here on: OSError: no"
    assert len(said) == bool(at)
    assert all(warning in line for line in said)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8


def test_wandb_is_given_the_run_and_its_figures(tmp_path, monkeypatch):
    logged, begun = [], []

    def init(**options):
        begun.append(options)
        log = lambda figures, step: logged.append((step, figures))  # noqa: E731
        return types.SimpleNamespace(log=log, finish=lambda: logged.append("end"))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    (tmp_path / "environment.json").write_text('{"started": "today"}')
    for _ in range(2):
        logger = opened(tmp_path, "wandb(project='mine')")
        logger.step({"step": 5, "loss": 0.5, "skipped": None})
        logger.close()
    assert logged == [(5, {"step/loss": 0.5}), "end"] * 2
    assert begun[0] == begun[1]  # it goes on with the same run
    assert begun[0]["project"] == "mine"
    assert begun[0]["config"] == {"seed": 0}
