"""Tasks of one's own, named by import path: the trainer knows nothing of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import data, training
from jaxcomp.models import Tiny
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks import Learnt, Sums, Task, Variables
from tests.training.small import built, rows, small_config

HERE = "tests.training.test_tasks"
POINTS = 256


# --- Logistic regression: arrays and two functions ------------------------------------


def regression(config: Any, workers: Any) -> Task:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(POINTS, 5)).astype(np.float32)
    labels = (inputs @ np.arange(5) > 0).astype(np.float32)

    def losses_of(params: Any, inputs: Any, labels: Any) -> Any:
        margins = inputs @ params["w"]
        losses = optax.sigmoid_binary_cross_entropy(margins, labels)
        return losses, ((margins > 0) == (labels > 0)).astype(jnp.float32)

    def loss(params: Any, stats: Any, carry: Any, batch: Any, key: Any) -> Any:
        losses, hits = losses_of(params, *batch)
        figures = {"margin": jnp.mean(jnp.abs(batch[0] @ params["w"]))}
        return jnp.mean(losses), Learnt(stats, carry, jnp.mean(hits), figures)

    def score(variables: Any, carry: Any, batch: Any, weights: Any) -> Any:
        losses, hits = losses_of(variables.params, *batch)
        return Sums(losses @ weights, hits @ weights, jnp.sum(weights)), carry

    order = np.arange(192).reshape(3, workers.size, -1)
    return Task(
        model="linear",
        data="points",
        train=(inputs[:192], labels[:192]),
        test=(inputs[192:], labels[192:]),
        shares=lambda epoch: order,
        init=lambda key: Variables({"w": jnp.zeros(5)}, {}),
        loss=loss,
        score=score,
        figures=("margin",),
    )


def test_logistic_regression_trains_as_any_task(tmp_path, capsys):
    config = small_config(
        task=f"{HERE}:regression", batch_size=64, train_for="9 epochs", weight_decay=0
    )
    result = training.train_and_evaluate(config, tmp_path)
    assert result.test_accuracy > 0.9
    assert "linear (5 parameters) on points: 2 workers" in capsys.readouterr().out
    margins = [float(row["margin"]) for row in rows(tmp_path / "steps.csv")]
    assert 0 < margins[0] < margins[-1]


# --- Models, data sets and schedules of one's own -------------------------------------


def digits(size: int = 8, data_dir: Any = None) -> data.Dataset:
    return data.load("digits", size=size, data_dir=data_dir)


def twice(num_classes: int, width: int = 1) -> Tiny:
    return Tiny(num_classes, 2 * width)


def falling(horizon: Any, total: int, power: float = 1.0) -> Any:
    return lambda step: (1 - jnp.asarray(step, jnp.float32) / total) ** power


def number(first: Any = None, second: Any = None) -> int:
    return 7


def test_all_four_are_found_by_their_import_path():
    config = small_config(
        model=f"{HERE}:twice(width=3)",
        dataset=f"{HERE}:digits(size=9)",
        schedule=f"{HERE}:falling(power=2)",
    )
    setup = built(config)
    assert setup.task.train[0].shape[1:] == (9, 9, 1)
    params = jax.eval_shape(setup.fresh).params
    assert params["Dense_0"]["kernel"].shape == (12, 10)
    assert float(setup.segments.rate(11)) == pytest.approx(0.1 / 4)
    assert setup.task.model == f"{HERE}:twice(width=3)"


KINDS = ("task", "model", "dataset", "schedule")
WRONG = {
    "no_such_package.nets:tiny": "no module 'no_such_package'. .*PYTHONPATH",
    "jaxcomp.no_such:tiny": "no module 'jaxcomp.no_such'",
    f"{HERE}:regresion": f"module {HERE!r} has no 'regresion'. .*'regression'",
    f"{HERE}:POINTS": "'POINTS' of module .* is of type int, not a function",
    f"{HERE}:number | number": "stands alone",
    f"{HERE}:": "not a spec",
    f"{HERE}:number": "makes a value of type int, no",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", WRONG)
def test_what_is_not_found_is_told(kind, spec):
    with pytest.raises(ValueError, match=WRONG[spec]):
        built(small_config(**{kind: spec}))


def test_a_module_s_own_faults_keep_their_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken_nets.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        built(small_config(model="broken_nets:tiny"))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"shares": lambda epoch: np.zeros((3, 2, 4), int)}, r"shares are \[3, 2, 4\]"),
        ({"train": (np.zeros((7, 5)),)}, "a batch of 64 is more than 7 examples"),
        ({"figures": ("overflow",)}, r"both report \['overflow'\]"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(part, message, monkeypatch):
    make = regression
    monkeypatch.setitem(
        globals(), "regression", lambda *given: make(*given)._replace(**part)
    )
    task = {"task": f"{HERE}:regression", "batch_size": 64}
    with pytest.raises(ValueError, match=message):
        built(small_config(**task, compressor="threshold(v=1.0)"))


def test_figures_are_those_that_a_task_names():
    setup = built(small_config(task=f"{HERE}:regression", batch_size=64))
    task = setup.task._replace(figures=("tokens",))
    tx: Any = optax.identity()
    step = make_train_step(task, tx, seed=0, axis="workers")
    mapped = jax.vmap(step, in_axes=None, axis_name="workers", axis_size=2)
    batch = (array[:4] for array in task.train)
    with pytest.raises(ValueError, match=r"\('tokens',\), and gives \['margin'\]"):
        jax.eval_shape(mapped, setup.fresh(), *batch)
