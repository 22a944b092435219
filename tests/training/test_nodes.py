"""Gossip between nodes of several devices, which average their gradients inside."""

import functools

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training, wire
from jaxcomp.core.errors import UserError
from jaxcomp.parallel import collectives
from jaxcomp.parallel.collectives import Nodes
from tests.tiers import tiers
from tests.training.small import built, small_config

GOSSIP = {"exchange": "", "memory": "", "topology": "ring", "scope": "per_leaf"}
# Neither its batches nor its noise depend on how a share is divided.
PLAIN = {"model": "mlp(hidden=[3], batch_norm=False)", "augment": ""}


def config_of(mixer="choco(gamma=0.5)", **changes):
    usual = {"mixer": mixer, "compressor": "sign", "mapper": "vmap", "workers": 8}
    usual |= {**GOSSIP, **PLAIN, "devices_per_node": 2, "clip": "local(limit=0.5)"}
    return small_config(**{**usual, "train_for": "5 steps", **changes})


def models_of(config, folder):
    """The workers' models as rows of one matrix, and what a step sent."""
    run = training.train_and_evaluate(config, folder)
    params = parallel.to_host(run.state.params).value
    leaves = jax.tree.leaves(params)
    models = np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)
    return models, run.traffic


@pytest.mark.parametrize(
    "mixer",
    tiers(
        [
            "choco(gamma=0.5)",
            "deep_squeeze",
            "delayed_sgd",
            "choco_overlapped(gamma=0.5)",
        ],
        lambda mixer: mixer == "choco(gamma=0.5)",
    ),
)
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


@pytest.mark.slow
@pytest.mark.parametrize("mapper", ["pmap", "shard_map"])
def test_devices_of_a_node_hold_the_same_model_to_the_bit(mapper, tmp_path):
    found, sent = models_of(config_of(mapper=mapper), tmp_path / mapper)
    expected, simulated = models_of(config_of(), tmp_path / "vmap")
    np.testing.assert_array_equal(found[0::2], found[1::2])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert sent.left == simulated.left


RING = [(i, (i + 1) % 4) for i in range(4)]


@pytest.mark.parametrize("mapper", parallel.MAPPERS)
@pytest.mark.parametrize("pairs", [RING, [(0, 2), (3, 1)]], ids=["ring", "few"])
def test_a_permutation_between_nodes_leaves_each_of_them_once(mapper, pairs):
    """Of five numbers, which two devices do not divide."""
    crew = parallel.setup(8, mapper)
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
        ({"mixer": "diloco", "topology": ""}, "needs a mixer that gossips"),
        ({"devices_per_node": 3}, "no whole number of nodes of 3: .* such as 9"),
        ({"elastic": True}, "set elastic to False"),
        ({"devices_per_node": 0}, "devices_per_node is a whole number"),
        ({"mapper": "shard_map", "workers_per_device": 2}, "set one of them to 1"),
        ({"topology": "expander"}, "4"),  # of nodes
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        built(config_of(**changes))


def test_the_rate_counts_nodes():
    scaled, usual = (
        built(config_of(lr_scaling=scaling, learning_rate=0.1, schedule="constant"))
        for scaling in ("linear", "none")
    )
    found = [float(each.segments.rate(0)) for each in (scaled, usual)]
    assert found[0] == pytest.approx(4 * found[1])
