"""Tasks of one's own, named by import path: the trainer knows nothing of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import data, parallel, training
from jaxcomp.models import Tiny
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks import Learnt, Sums, Task, Variables
from tests.tiers import tiers
from tests.training.small import assert_same_state, built, rows, small_config, stop_at

HERE = "tests.training.test_tasks"
LETTERS, WIDTH = 6, 8


# --- A language model, whose state goes from batch to batch ---------------------------


def text(config: Any, workers: Any, length: int = 6) -> Task:
    """Letters that follow those three places before; batches go on with one another."""

    def chunks(tokens: np.ndarray) -> tuple[np.ndarray]:
        rows = config.batch_size  # that many places of the text are read at a time
        count = (len(tokens) - 1) // (rows * length)
        firsts = np.arange(count)[:, None] + np.arange(rows)[None] * count
        places = firsts.reshape(-1, 1) * length + np.arange(length + 1)[None]
        return (tokens[places],)

    train, test = chunks(letters(4 * 8 * 40 + 1)), chunks(letters(4 * 8 * 9 + 1))
    order = np.arange(len(train[0])).reshape(-1, workers.size, 8 // workers.size)
    return Task(
        model="rnn",
        data=f"text(length={length})",
        train=train,
        test=test,
        shares=lambda epoch: order,
        init=start,
        loss=loss,
        score=score,
        carry=lambda examples: {"h": jnp.zeros((examples, WIDTH))},
        figures=("perplexity",),
    )


def letters(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = rng.integers(LETTERS, size=count)
    for i in range(3, count):
        if rng.random() < 0.9:
            found[i] = (found[i - 3] + 1) % LETTERS
    return found.astype(np.int32)


def start(key: jax.Array) -> Variables:
    def drawn(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        return jax.random.normal(key, shape) / shape[0] ** 0.5

    shapes = {"in": (LETTERS, WIDTH), "on": (WIDTH, WIDTH), "out": (WIDTH, LETTERS)}
    keys = jax.random.split(key, len(shapes))
    params = {n: drawn(k, s) for (n, s), k in zip(shapes.items(), keys, strict=True)}
    return Variables(params, {})


def read(params: Any, h: jax.Array, tokens: jax.Array) -> tuple[Any, ...]:
    """Losses and hits [examples, length], and the state after the last letter."""

    def letter(h: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(params["in"][token] + h @ params["on"])
        return h, h @ params["out"]

    h, logits = jax.lax.scan(letter, h, tokens[:, :-1].T)
    following = tokens[:, 1:].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, following)
    hits = (jnp.argmax(logits, -1) == following).astype(jnp.float32)
    return losses.T, hits.T, h


def loss(params: Any, stats: Any, carry: Any, batch: Any, key: Any) -> Any:
    losses, hits, h = read(params, carry["h"], *batch)
    mean = jnp.mean(losses)
    figures = {"perplexity": jnp.exp(mean)}
    return mean, Learnt(stats, {"h": jax.lax.stop_gradient(h)}, jnp.mean(hits), figures)


def score(variables: Variables, carry: Any, batch: Any, weights: Any) -> Any:
    losses, hits, h = read(variables.params, carry["h"], *batch)
    weights = jnp.broadcast_to(weights[:, None], losses.shape)
    totals = jnp.sum(losses * weights), jnp.sum(hits * weights), jnp.sum(weights)
    return Sums(*totals), {"h": h}


def text_config(**changes: Any) -> Any:
    settings = {"task": f"{HERE}:text(length=4)", "batch_size": 8, "log_every": 10}
    rates = {"learning_rate": 0.3, "schedule": "constant", "clip": "local(limit=1)"}
    return small_config(**{**settings, **rates, "compressor": "sign", **changes})


@pytest.fixture(scope="module")
def read_twice(tmp_path_factory):
    return training.train_and_evaluate(
        text_config(), tmp_path_factory.mktemp("text") / "run"
    )


def test_a_language_model_trains_as_any_task(read_twice):
    table = rows(read_twice.folder / "metrics.csv")
    assert [row["step"] for row in table] == ["40", "80"]
    assert float(table[-1]["test_loss"]) < 0.9 * np.log(LETTERS)
    for row in rows(read_twice.folder / "steps.csv"):
        perplexities = float(row["perplexity"]), np.exp(float(row["loss"]))
        np.testing.assert_allclose(*perplexities, rtol=0.05)  # means over two workers


def test_an_evaluation_hands_its_state_on_too(read_twice):
    """As one pass over each place of the text; not if it begins anew."""
    params = read_twice.state.params
    [tokens] = built(text_config()).task.test
    whole, anew = jnp.zeros((8, WIDTH)), jnp.zeros((8, WIDTH))
    losses, others = [], []
    for chunk in tokens.reshape(-1, 8, 5):
        found, _, whole = read(params, whole, jnp.asarray(chunk))
        losses.append(found)
        others.append(read(params, anew, jnp.asarray(chunk))[0])
    assert read_twice.test_loss == pytest.approx(float(np.mean(losses)), rel=1e-5)
    assert read_twice.test_loss != pytest.approx(float(np.mean(others)), rel=1e-2)


def test_a_run_goes_on_with_the_state_that_it_had(read_twice, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 33)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(text_config(), tmp_path)
    again = training.train_and_evaluate(text_config(), tmp_path)
    assert_same_state(again.state, read_twice.state)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_worker_hands_on_its_own_state(accumulate):
    """Of a batch, and of the micro-batches into which it is divided."""
    setup = built(text_config(mapper="vmap", accumulate=accumulate))
    state = parallel.spread(setup.fresh(), setup.workers)
    axes = parallel.axes(state)
    step = parallel.map_step(
        setup.step(setup.stages.at(0)),
        setup.workers,
        in_axes=(axes, 0),
        out_axes=(axes, 0),
    )
    [tokens], hs = setup.task.train, jnp.zeros((2, 4, WIDTH))
    for chosen in setup.task.shares(0)[:2]:
        batch, params = jnp.asarray(tokens[chosen]), state.params
        state, metrics = step(state, batch)
        for worker in range(2):
            losses, _, h = read(params, hs[worker], batch[worker])
            left = state.carry.value["h"][worker]
            np.testing.assert_allclose(h, left, rtol=1e-4, atol=1e-6)
            mean = float(jnp.mean(losses))
            assert float(metrics.loss[worker]) == pytest.approx(mean, rel=1e-4)
        hs = state.carry.value["h"]


@pytest.mark.parametrize(
    "changes",
    tiers(
        [{"mixer": "local_sgd(h=3)", "memory": "none"}, {"mapper": "shard_map"}],
        lambda changes: False,
    ),
    ids=str,
)
def test_workers_with_models_of_their_own_read_too(changes, tmp_path):
    config = text_config(**changes)
    result = training.train_and_evaluate(config, tmp_path)
    assert result.test_loss < np.log(LETTERS)
    if result.own:
        assert result.own.worst <= result.own.mean


# --- Logistic regression: arrays and two functions ------------------------------------


def regression(config: Any, workers: Any) -> Task:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(256, 5)).astype(np.float32)
    labels = (inputs @ np.arange(5) > 0).astype(np.float32)

    def losses_of(params: Any, inputs: Any, labels: Any) -> Any:
        margins = inputs @ params["w"]
        losses = optax.sigmoid_binary_cross_entropy(margins, labels)
        return losses, ((margins > 0) == (labels > 0)).astype(jnp.float32)

    def loss(params: Any, stats: Any, carry: Any, batch: Any, key: Any) -> Any:
        losses, hits = losses_of(params, *batch)
        return jnp.mean(losses), Learnt(stats, carry, jnp.mean(hits))

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
    )


def test_logistic_regression_trains_as_any_task(tmp_path, capsys):
    config = small_config(
        task=f"{HERE}:regression", batch_size=64, train_for="9 epochs", weight_decay=0
    )
    result = training.train_and_evaluate(config, tmp_path)
    assert result.test_accuracy > 0.9
    assert "linear (5 parameters) on points: 2 workers" in capsys.readouterr().out


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
    f"{HERE}:LETTERS": "'LETTERS' of module .* is of type int, not a function",
    f"{HERE}:number | number": "stands alone",
    f"{HERE}:": "not a spec",
    f"{HERE}:number": "makes a value of type int, no",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", WRONG)
def test_what_is_not_found_is_told(kind, spec):
    with pytest.raises(ValueError, match=WRONG[spec]):
        built(small_config(**{kind: spec}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "clasification"}, "Did you mean 'classification'"),
        ({"task": f"{HERE}:text(lenght=3)"}, "lenght"),
        ({"model": f"{HERE}:twice(widht=3)"}, "widht"),
        ({"dataset": f"{HERE}:digits(sice=3)"}, "sice"),
        ({"model": f"{HERE}:twice", "batch_norm": "sync"}, "argument statistics"),
    ],
)
def test_wrong_arguments_are_told(changes, message):
    with pytest.raises(ValueError, match=message):
        built(small_config(**changes))


def test_a_module_s_own_faults_keep_their_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken_nets.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        built(small_config(model="broken_nets:tiny"))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"shares": lambda epoch: np.zeros((3, 2, 4), int)}, r"shares are \[3, 2, 4\]"),
        ({"train": (np.zeros((7, 5)),)}, "a batch of 8 is more than 7 examples"),
        ({"figures": ("overflow",)}, r"both report \['overflow'\]"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(part, message, monkeypatch):
    make = text
    monkeypatch.setitem(
        globals(),
        "text",
        lambda config, workers: make(config, workers)._replace(**part),
    )
    with pytest.raises(ValueError, match=message):
        built(text_config(task=f"{HERE}:text", compressor="threshold(v=1.0)"))


def test_figures_are_those_that_a_task_names():
    setup = built(text_config())
    task = setup.task._replace(figures=("tokens",))
    tx: Any = optax.identity()
    step = make_train_step(task, tx, seed=0, axis="workers")
    mapped = jax.vmap(step, in_axes=None, axis_name="workers", axis_size=2)
    with pytest.raises(ValueError, match=r"\('tokens',\), and gives \['perplexity'\]"):
        jax.eval_shape(mapped, setup.fresh(), task.train[0][:4])
