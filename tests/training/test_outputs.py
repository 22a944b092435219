"""What a run writes down beside its tables, also when it is stopped and goes on."""

import csv
import json

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import make_exchange, training
from jaxcomp.runs.table import LAYERS, PARTS
from jaxcomp.training.diagnostics import watched
from tests.runs.test_loggers import scalars
from tests.training.small import small_config

SETTINGS = {"layers_every": "1 epoch", "mapper": "vmap"}


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def lines(folder):
    """Rows of metrics.jsonl without times."""
    found = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if "second" not in k and "rate" not in k}
        for row in found
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    config = small_config(breakdown=True, **SETTINGS)
    training.train_and_evaluate(config, folder)
    return folder


def test_json_lines_and_logs_tsv_say_what_the_tables_say(whole):
    steps, epochs = table(whole / "steps.csv"), table(whole / "metrics.csv")
    found = lines(whole)
    kinds = [row["kind"] for row in found]
    assert (kinds.count("step"), kinds.count("epoch")) == (len(steps), len(epochs))
    assert found[0]["loss"] == float(steps[0]["loss"])
    logged = (whole / "logs.tsv").read_text().splitlines()
    last = [float(cell) for cell in logged[-1].split("\t")]
    assert last[0] == 2
    assert last[1] == pytest.approx(float(epochs[-1]["seconds"]) / 3600, abs=1e-7)
    assert last[2] == pytest.approx(100 * float(epochs[-1]["test_accuracy"]), abs=0.01)


def test_tensorboard_shows_the_scalars_of_a_run_folder(whole):
    found = scalars(whole / "tensorboard")
    for row in table(whole / "metrics.csv"):
        accuracy = (int(row["step"]), pytest.approx(float(row["test_accuracy"])))
        assert accuracy in found["epoch/test_accuracy"]
    assert len(found["step/loss"]) == len(table(whole / "steps.csv"))


def test_layers_have_what_each_tensor_loses(whole):
    found = table(whole / "layers.csv")
    assert tuple(found[0]) == LAYERS.columns
    assert {row["epoch"] for row in found} == {"1", "2"}
    names = [row["leaf"] for row in found if row["epoch"] == "1"]
    assert "Dense_0/kernel" in names
    assert len({*names}) == len(names) == len(found) / 2
    assert all(0 <= float(row["error"]) <= 1 for row in found)
    assert all(float(row["gradient_norm"]) > 0 for row in found)
    assert any(float(row["error"]) > 0 for row in found)


def test_a_breakdown_has_a_time_for_each_part(whole):
    found = table(whole / "breakdown.csv")
    assert list(found[0]) == ["part", "ms", "how"]
    assert tuple(row["part"] for row in found) == PARTS
    assert all(float(row["ms"]) >= 0 and row["how"] for row in found)
    times = {row["part"]: float(row["ms"]) for row in found}
    assert min(times[part] for part in ("forward_backward", "compress", "update")) > 0


@pytest.mark.parametrize(
    ("exchange", "compressor"),
    [
        ("gather", "top_k(keep=0.1)"),
        ("two_phase", "sign"),
        ("power_sgd(rank=1, min_rate=1)", None),
    ],
)
def test_errors_of_leaves_add_up_to_that_of_the_tree(exchange, compressor):
    method = watched(make_exchange(exchange, compressor, "none"))
    keys = jax.random.split(jax.random.key(0), 2)
    shapes = {"b": (5, 7), "w": (5, 10, 9)}
    tree = {
        name: jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }

    @jax.jit
    def infos(tree):
        step = lambda x: method.average(x, method.init(x), jax.random.key(1)).info  # noqa: E731
        return jax.vmap(step, axis_name="workers")(tree)

    info = infos(tree)
    given = jnp.stack(
        [jnp.sum(jnp.square(x.reshape(5, -1)), axis=1) for x in tree.values()], axis=1
    )
    lost = jnp.sum(info.extra["errors_of_leaves"] * given, axis=1)
    expected = info.gradient_error * jnp.sum(given, axis=1)
    assert jnp.allclose(lost, expected, rtol=1e-4, atol=1e-6)
