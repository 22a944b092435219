"""Runs whose workers, or nodes of several devices, have models of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import data, models, parallel, training, wire
from jaxcomp.core.errors import UserError
from jaxcomp.parallel import collectives
from jaxcomp.parallel.collectives import Nodes
from tests.tiers import tiers
from tests.training.small import (
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
    "deep_squeeze": gossip_config("deep_squeeze", mapper="vmap", partition="sorted"),
    "diloco": local_config("diloco(h=4, fragments=2)"),
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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exchange": "gather", "dense_for": "1 epoch"}, "exchange=.* and dense_for="),
        ({"topology": ""}, "needs a topology"),
        ({"topology": "exponential"}, "not symmetric"),
        ({"mixer": ""}, "topology 'ring' is of no use"),
        ({"mixer": "diloco", "exchange": "gather"}, "no topology"),
        ({"batch_norm": "sync"}, "set it to 'local'"),
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


# --- Gossip between nodes of several devices, which average their ---------------------

OF_NODES = {"exchange": "", "memory": "", "topology": "ring", "scope": "per_leaf"}
# Neither its batches nor its noise depend on how a share is divided.
PLAIN = {"model": "mlp(hidden=[3], batch_norm=False)", "augment": ""}


def config_of(mixer="choco(gamma=0.5)", **changes):
    usual = {"mixer": mixer, "compressor": "sign", "mapper": "vmap", "workers": 8}
    usual |= {
        **OF_NODES,
        **PLAIN,
        "devices_per_node": 2,
        "clip": "local(limit=0.5)",
    }
    return small_config(**{**usual, "train_for": "5 steps", **changes})


def models_of(config, folder):
    """The workers' models as rows of one matrix, and what a step sent."""
    run = training.train_and_evaluate(config, folder)
    params = parallel.to_host(run.state.params).value
    leaves = jax.tree.leaves(params)
    models = np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)
    return models, run.traffic


NODES = ["choco(gamma=0.5)", "deep_squeeze", "delayed_sgd"]


@pytest.mark.parametrize("mixer", tiers(NODES, NODES[0].__eq__))
def test_nodes_learn_what_workers_learn_that_have_their_whole_share(mixer, tmp_path):
    graph = {"topology": "complete" if mixer == "delayed_sgd" else "ring"}
    whole = {"workers": 4, "devices_per_node": 1, **graph}
    nodes, sent = models_of(config_of(mixer, **graph), tmp_path / "nodes")
    alone, usual = models_of(config_of(mixer, **whole), tmp_path / "alone")
    np.testing.assert_array_equal(nodes[0::2], nodes[1::2])
    np.testing.assert_allclose(nodes[0::2], alone, rtol=1e-4, atol=1e-5)
    assert len(np.unique(nodes, axis=0)) == 4
    if mixer.startswith("choco"):
        # The halves of both messages, up to a word; the rest stays inside the node.
        assert usual.left == usual.wire
        assert usual.left <= sent.left <= usual.left + 16
        assert sent.wire > sent.left / 2 + sent.dense
        assert "B would leave each host of 2 workers, and" in str(sent)
        # Of a ring of eight, one edge leaves each node.
        assert sent.exact == 2 * 7 / 8 * sent.dense
        assert usual.exact == 2 * 3 / 4 * usual.dense


@pytest.mark.parametrize("mapper", parallel.MAPPERS)
def test_a_permutation_between_nodes_leaves_each_of_them_once(mapper):
    """Of five numbers, which two devices do not divide."""
    crew = parallel.setup(8, mapper)
    pairs = [(0, 2), (3, 1)]
    permute = functools.partial(
        collectives.permute, pairs=pairs, axis=Nodes(crew.axis, 2)
    )
    rows = np.repeat(np.arange(20, dtype=np.float32).reshape(4, 5), 2, axis=0)
    mapped = parallel.map_step(permute, crew, in_axes=(0,), out_axes=0)
    placed = parallel.place(rows, crew, 0)
    expected = np.zeros_like(rows)
    for source, target in pairs:
        expected[2 * target : 2 * target + 2] = rows[2 * source]
    np.testing.assert_array_equal(mapped(placed), expected)
    if mapper == "vmap":
        return
    found = wire.collectives(mapped.lower(placed).compile())
    between = [c for c in found if c.kind == "collective-permute"]
    assert [c.nbytes for c in between] == [3 * 4]
    assert {(i // 2, j // 2) for i, j in between[0].groups} == set(pairs)
    inside = [c for c in found if c.kind == "all-gather"]
    assert [{i // 2 for i in group} for group in inside[0].groups] == [
        {node} for node in range(4)
    ]
    assert len(found) == 2


def test_the_devices_of_a_node_divide_its_share():
    nodes, alone = (
        built(config_of(**{"partition": "sorted", **how})).task.shares(1)
        for how in ({}, {"workers": 4, "devices_per_node": 1})
    )
    np.testing.assert_array_equal(nodes.reshape(alone.shape), alone)
    assert nodes.shape[1] == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "", "topology": ""}, "exchange='hierarchical.per_host=2.'"),
        ({"devices_per_node": 3}, "no whole number of nodes of 3: .* such as 9"),
        ({"elastic": True}, "set one of them to False"),
        ({"topology": "expander"}, "4"),  # of nodes
    ],
)
def test_nodes_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        built(config_of(**changes))
