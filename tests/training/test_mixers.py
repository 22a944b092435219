"""Runs whose workers have models of their own."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import data, models, parallel, training
from jaxcomp.training import feed
from tests.tiers import tiers
from tests.training.small import (
    NAN_WHERE_BLACK,
    assert_same_state,
    built,
    rows,
    small_config,
    stop_at,
)

GOSSIP = {"exchange": "", "memory": "", "topology": "ring"}


# It has most to remember: models, estimates, pulls, a message under way.
OVERLAPPED = "choco_overlapped(gamma=0.5)"


def gossip_config(mixer=OVERLAPPED, **changes):
    settings = {"mixer": mixer, "compressor": "sign", "workers": 4, **GOSSIP}
    return small_config(**{**settings, **changes})


def local_config(mixer, **changes):
    settings = {"mixer": mixer, "compressor": "qsgd(levels=7)", "memory": "none"}
    return small_config(**{**settings, **changes})


RUNS = {
    "choco": gossip_config("choco(gamma=0.5)"),
    "choco_overlapped": gossip_config(),
    "one peer": gossip_config(
        "d_psgd", topology="exponential(one_peer=True)", compressor="none"
    ),
    "deep_squeeze": gossip_config("deep_squeeze", mapper="vmap", partition="sorted"),
    "stateful": gossip_config(compressor="rotating_slice", partition="random"),
    "diloco": local_config("diloco(h=4, fragments=2)"),
    "sparse_loco": local_config("sparse_loco(h=3)", compressor="top_k(keep=0.1)"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run that several tests look at."""
    return training.train_and_evaluate(gossip_config(), tmp_path_factory.mktemp("run"))


def test_it_learns_and_reports_how_far_apart_models_are(finished):
    table = rows(finished.folder / "metrics.csv")
    assert float(table[-1]["train_loss"]) < float(table[0]["train_loss"])
    params = parallel.to_host(finished.state.params).value
    apart = sum(
        np.square(x - x.mean(axis=0)).sum() for x in jax.tree.leaves(params)
    ) / len(jax.tree.leaves(params)[0])
    assert float(table[-1]["consensus_distance"]) == pytest.approx(apart**0.5, rel=1e-4)
    assert apart > 0


def test_the_mean_model_is_evaluated_and_each_worker_s_own_at_the_end(finished):
    """Against forward passes over the whole test set, model by model."""
    digits, model = data.load("digits", size=8), models.make("tiny", 10, width=2)
    images = data.normalize(jnp.asarray(digits.test_images), digits.mean, digits.std)

    def accuracy(params, stats):
        variables = {"params": params, "batch_stats": stats}
        logits = model.apply(variables, images, train=False)
        hits = np.argmax(np.asarray(logits), -1) == digits.test_labels
        return float(hits.mean())

    params, stats = (
        parallel.to_host(part).value
        for part in (finished.state.params, finished.state.stats)
    )
    mean = jax.tree.map(lambda x: x.mean(axis=0), (params, stats))
    assert finished.test_accuracy == pytest.approx(accuracy(*mean), abs=0.003)
    own = [
        accuracy(*jax.tree.map(lambda x, i=i: x[i], (params, stats))) for i in range(4)
    ]
    assert finished.own.mean == pytest.approx(np.mean(own), abs=0.003)
    assert finished.own.worst == pytest.approx(min(own), abs=0.003)
    first, last = rows(finished.folder / "metrics.csv")
    assert first["own_accuracy"] == "" != last["own_accuracy"]
    assert float(last["worst_accuracy"]) == pytest.approx(finished.own.worst)


def test_training_goes_on_from_the_workers_own_models(finished):
    """Evaluation of the mean changes no model and no statistics."""
    without = training.train_and_evaluate(
        gossip_config(eval_every="2 epochs"), finished.folder.parent / "rarely"
    )
    assert_same_state(without.state, finished.state)


def test_figures_of_traffic_are_of_both_neighbours(finished):
    size = sum(x.size for x in jax.tree.leaves(jax.eval_shape(build_fresh).params))
    message = 4 + -(-size // 8)  # a scale, and a bit for each element
    assert finished.traffic.wire == 2 * -(-message // 4) * 4


def build_fresh():
    return built(gossip_config()).fresh()


@pytest.mark.parametrize("name", tiers(RUNS, "choco_overlapped".__eq__))
def test_a_run_goes_on_to_the_bit(name, finished, tmp_path, monkeypatch):
    """Models, public estimates, messages under way and outer momenta included."""
    config, whole = RUNS[name], finished
    if name != "choco_overlapped":
        whole = training.train_and_evaluate(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(config, tmp_path / "cut")
    resumed = training.train_and_evaluate(config, tmp_path / "cut")
    assert_same_state(resumed.state, whole.state)
    for table in ("metrics.csv", "steps.csv"):
        assert rows(tmp_path / "cut" / table) == rows(whole.folder / table)


@pytest.mark.slow
@pytest.mark.parametrize("mapper", ["vmap", "shard_map"])
def test_mappers_agree(mapper, finished, tmp_path):
    config = gossip_config(mapper=mapper)
    result = training.train_and_evaluate(config, tmp_path)
    here, there = (r.traffic.wire for r in (result, finished))
    assert here == there
    losses = [
        [float(row["train_loss"]) for row in rows(r.folder / "metrics.csv")]
        for r in (result, finished)
    ]
    np.testing.assert_allclose(*losses, rtol=0.05)


def test_local_bytes_are_those_of_the_steps_that_sent(tmp_path):
    """22 steps of a round of 4: five times one message."""
    result = training.train_and_evaluate(
        local_config("diloco(h=4)", log_every=1), tmp_path
    )
    leaves = jax.tree.leaves(parallel.to_host(result.state.params))
    size = sum(x.size for x in leaves) // 2  # of one of two workers
    message = -(-size // 2) + 4 * -(-size // 512)
    assert result.traffic.wire * 22 == pytest.approx(5 * message, rel=0.02)
    # What is not sent has no error that would count in the mean.
    errors = [float(r["gradient_error"]) for r in rows(tmp_path / "metrics.csv")]
    assert all(0.001 < error < 1 for error in errors)
    steps = rows(tmp_path / "steps.csv")
    told = [int(r["step"]) for r in steps if not math.isnan(float(r["gradient_error"]))]
    assert told == [4, 8, 12, 16, 20]


def test_a_worker_without_a_gradient_still_talks(tmp_path, monkeypatch):
    """Its neighbours count on its messages; nothing becomes NaN."""
    original = feed.train_feed

    def poisoned(*args, **kwargs):
        for images, labels in original(*args, **kwargs):
            images = images.copy()
            images[1] = 0  # all black on worker 1
            yield images, labels

    monkeypatch.setattr(feed, "train_feed", poisoned)
    choco = "choco(gamma=0.5)"
    config = gossip_config(choco, nonfinite="skip", augment=NAN_WHERE_BLACK)
    result = training.train_and_evaluate(config, tmp_path / "skip")
    params = parallel.to_host(result.state.params).value
    for x in jax.tree.leaves(params):
        assert np.all(np.isfinite(x))
    # Worker 1 learnt from its neighbours alone.
    start = jax.tree.leaves(built(config).fresh().params)
    assert any(
        np.any(x[1] != s) for x, s in zip(jax.tree.leaves(params), start, strict=True)
    )
    with pytest.raises(training.NonFinite, match="worker 1: "):
        training.train_and_evaluate(
            gossip_config(choco, augment=NAN_WHERE_BLACK), tmp_path / "stop"
        )


def test_each_worker_sees_its_own_share():
    task = built(gossip_config(partition="sorted")).task
    deal, labels = task.shares, task.train[1]
    seen = [set(labels[deal(0)[:, worker].ravel()].tolist()) for worker in range(4)]
    assert all(len(classes) <= 4 for classes in seen)
    assert set.union(*seen) == set(range(10))
    np.testing.assert_array_equal(deal(3), deal(3))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exchange": "gather"}, "--config.exchange="),
        ({"memory": "error_feedback"}, "no use for memory='error_feedback'"),
        ({"dense_for": "1 epoch"}, "dense_for"),
        ({"topology": ""}, "needs a topology"),
        ({"topology": "rung"}, "Did you mean 'ring'"),
        ({"topology": "exponential"}, "not symmetric"),
        ({"mixer": ""}, "topology 'ring' is of no use"),
        ({"mixer": "choko"}, "Did you mean 'choco'"),
        ({"mixer": "diloco", "exchange": "gather"}, "no topology"),
        ({"batch_norm": "sync"}, "set it to 'local'"),
        ({"partition": "label"}, "unknown partition 'label'"),
        ({"partition": "dirichlet(alpha=0)"}, "alpha"),
        ({"lr_scaling": "degre"}, "Did you mean 'degree'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        built(gossip_config(**changes))


def test_the_rate_grows_with_the_degree():
    """A worker of a ring hears three models, its own included."""
    usual, scaled = (
        built(gossip_config(lr_scaling=scaling)).segments.rate(5)
        for scaling in ("none", "degree")
    )
    assert float(scaled) == pytest.approx(3 * float(usual))
    with pytest.raises(ValueError, match="set topology"):
        built(small_config(lr_scaling="degree"))
