"""Language modelling: what is read when, perplexity, and a resume with the state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import parallel, report, training
from jaxcomp.models import Lstm
from jaxcomp.training.tasks import ACCURACY, PERPLEXITY
from jaxcomp.training.tasks.language import cut, cut_whole
from tests.training.small import assert_same_state, built, rows, small_config, stop_at

COLUMNS, BPTT, WORDS = 8, 5, 400
STEPS = (WORDS - 1) // (COLUMNS * BPTT)  # of an epoch
SETTINGS = {
    "task": f"language(bptt={BPTT})",
    "dataset": f"grammar(tokens={WORDS})",
    "model": "lstm(width=8, layers=1, dropout=0.1)",
    "batch_size": COLUMNS,
    "learning_rate": 2.0,
    "clip": "local(limit=0.5)",
    "schedule": "constant",
    "weight_decay": 0.0,
    "log_every": 2,
}


def language_config(**changes: Any) -> Any:
    return small_config(**{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return training.train_and_evaluate(
        language_config(), tmp_path_factory.mktemp("language") / "run"
    )


def test_perplexity_stands_where_accuracy_does(finished):
    table = rows(finished.folder / "metrics.csv")
    assert [row["step"] for row in table] == [str(STEPS), str(2 * STEPS)]
    for row in table:
        for part in ("train", "test"):
            expected = np.exp(float(row[f"{part}_loss"]))
            assert float(row[f"{part}_perplexity"]) == pytest.approx(expected, rel=1e-6)
    found = [float(row["test_perplexity"]) for row in table]
    assert max(found) < 218  # words of the grammar: what it is before training
    assert finished.test == pytest.approx(found[1], rel=1e-6)
    assert finished.best == pytest.approx(min(found), rel=1e-6)
    for row in rows(finished.folder / "steps.csv"):
        expected = np.exp(float(row["loss"]))
        assert float(row["perplexity"]) == pytest.approx(expected, rel=1e-5)
    last, best = PERPLEXITY.text(found[-1]), PERPLEXITY.text(min(found))
    assert training.summary(finished)["test perplexity"] == f"{last} (best {best})"
    page = report.write_report(finished.folder).read_text()
    assert "lstm" in page


def test_a_checkpoint_is_evaluated_by_perplexity(finished):
    scores = training.evaluate(language_config(), finished.folder)
    assert scores["test_perplexity"] == pytest.approx(finished.best)
    line = training.score_line(scores)
    assert line.endswith(f", perplexity {finished.best:.4f}")


def test_an_evaluation_reads_each_word_once_and_hands_its_state_on(finished):
    """As one pass over each whole column."""
    setup = built(language_config())
    tokens = setup.task.test.tokens  # pyright: ignore[reportAttributeAccessIssue]
    chunks = tokens.reshape(-1, COLUMNS, BPTT + 1)
    whole = np.concatenate([*chunks[:, :, :-1].swapaxes(0, 1)], axis=0)
    whole = whole.reshape(COLUMNS, -1)
    targets = chunks[:, :, 1:].swapaxes(0, 1).reshape(COLUMNS, -1)
    counted = setup.task.test[1].reshape(-1, COLUMNS, BPTT).swapaxes(0, 1)
    counted = counted.reshape(COLUMNS, -1)
    assert counted.sum() == 10_000 - 1
    model = Lstm(218, width=8, layers=1)

    @jax.jit
    def read(params: Any) -> Any:
        carry = model.carry(COLUMNS)
        logits, _ = model.apply({"params": params}, whole, carry, False)  # pyright: ignore
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return jnp.sum(losses * counted) / jnp.sum(counted)

    mean = read(finished.state.params)
    assert finished.test_loss == pytest.approx(float(mean), rel=1e-5)


@pytest.mark.parametrize("step", [STEPS + 3])
def test_a_run_goes_on_in_mid_epoch_with_the_state_that_it_had(
    step, finished, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(language_config(), tmp_path)
    again = training.train_and_evaluate(language_config(), tmp_path)
    assert_same_state(again.state, finished.state)
    carry = parallel.to_host(finished.state.carry.value)
    assert carry["h"].shape == (2, COLUMNS // 2, 1, 8)
    assert not np.array_equal(carry["h"][0], carry["h"][1])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_worker_hands_on_its_own_state(accumulate):
    """Of a batch, and of the micro-batches into which it is divided."""
    model = {"model": "lstm(width=8, layers=1, dropout=0)", "mapper": "vmap"}
    setup = built(language_config(accumulate=accumulate, **model))
    task, state = setup.task, parallel.spread(setup.fresh(), setup.workers)
    axes = parallel.axes(state)
    step = parallel.map_step(
        setup.step(setup.stages.at(0)),
        setup.workers,
        in_axes=(axes, 0, 0, 0),
        out_axes=(axes, 0),
    )
    alone = jax.jit(jax.vmap(task.loss, in_axes=(None, None, 0, 0, None)))
    for chosen in task.shares(0)[:2]:
        batch, before = tuple(jnp.asarray(x[chosen]) for x in task.train), state
        expected, learnt = alone(
            before.params, {}, before.carry.value, batch, jax.random.key(0)
        )
        state, metrics = step(jax.tree.map(jnp.copy, before), *batch)
        np.testing.assert_allclose(metrics.loss, expected, rtol=1e-4)
        for name, carried in state.carry.value.items():
            np.testing.assert_allclose(learnt.carry[name], carried, 1e-4, 1e-6)
    assert np.any(state.carry.value["h"][0] != state.carry.value["h"][1])


def test_a_column_begins_anew_in_each_epoch():
    """Its first chunk says so, whatever was read before."""
    task = built(language_config()).task
    _, _, first = task.train
    for epoch in (0, 3):
        begins = first[task.shares(epoch)]
        assert begins[0].all()
        assert not begins[1:].any()
    params, stats = task.init(jax.random.key(0))
    used = jax.tree.map(lambda x: x + 0.5, task.carry(4))
    loss = jax.jit(lambda carry, batch: task.loss(params, stats, carry, batch, key)[0])
    key = jax.random.key(1)
    start, later = (
        tuple(array[task.shares(0)[step, 0]] for array in task.train) for step in (0, 1)
    )
    assert loss(used, start) == loss(task.carry(4), start)
    assert loss(used, later) != loss(task.carry(4), later)


def test_dropout_is_drawn_by_the_key_in_training_only():
    task = built(language_config()).task
    params, stats = task.init(jax.random.key(0))
    batch = tuple(array[task.shares(0)[0, 0]] for array in task.train)

    @jax.jit
    def loss(key: jax.Array) -> jax.Array:
        return task.loss(params, stats, task.carry(4), batch, key)[0]

    one, other = jax.random.split(jax.random.key(1))
    assert loss(one) == loss(one) != loss(other)


@pytest.mark.parametrize("columns", [1, 3, 7])
@pytest.mark.parametrize("length", [1, 4])
def test_every_word_but_the_first_is_predicted_once(columns, length):
    tokens = np.arange(100, 130)
    chunks = cut_whole(tokens, columns, length)
    predicted = chunks.tokens[:, 1:][chunks.counted > 0]
    assert sorted(predicted.tolist()) == tokens[1:].tolist()
    pairs = chunks.tokens[:, 1:] - chunks.tokens[:, :-1]
    assert (pairs[chunks.counted > 0] == 1).all()
    assert chunks.first.sum() == columns
    trained = cut(tokens, columns, length)
    assert trained.counted.all()
    left_out = len(tokens) - 1 - trained.counted.size
    assert 0 <= left_out < columns * length


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "sorted"}, "partition is 'dealt', not 'sorted'"),
        ({"task": "language(part=valid)"}, "has no part 'valid'. It has train, test"),
        (
            {"dataset": "grammar(tokens=30)"},
            "30 words has no chunk of 5 words for each",
        ),
        ({"dataset": "digits"}, "dataset 'digits' is one of the task 'classification'"),
        ({"model": "resnet8"}, "set task to 'classification', or name another model"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        built(language_config(**changes))


def test_a_measure_knows_what_is_better():
    assert PERPLEXITY.worst([2.0, 3.0]) == 3.0
    assert ACCURACY.worst([0.2, 0.3]) == 0.2
    assert PERPLEXITY.of(1e4, 0.0) == float("inf")
    assert PERPLEXITY.beats(5.0, None)
    assert PERPLEXITY.beats(4.0, 5.0)
    assert not PERPLEXITY.beats(5.0, 5.0)
