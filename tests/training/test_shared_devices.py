"""Runs with several workers on each device."""

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training
from jaxcomp.core.errors import UserError
from tests.training.small import assert_same_state, small_config

SHARED = {"mapper": "shard_map", "workers_per_device": 2, "workers": 4}


def config_of(**changes):
    return small_config(
        **{**SHARED, "train_for": "13 steps", "schedule": "constant", **changes}
    )


ALONE = {"workers_per_device": 1}


def test_state_goes_to_devices_of_their_own_to_the_bit(tmp_path):
    """What is stored has an axis of workers, whoever computes them."""
    here, there = (
        training.train_and_evaluate(config_of(train_for="5 steps", **how), tmp_path)
        for how in ({}, ALONE)
    )
    assert_same_state(here.state, there.state)
    assert (here.traffic.sender, there.traffic.sender) == ("device", "worker")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mapper": "pmap"}, "set mapper to 'shard_map'"),
        ({"mapper": "vmap"}, "set workers_per_device to 1"),
        ({"workers_per_device": 3}, "4 workers are no whole number of devices"),
        ({"exchange": "hierarchical"}, "say how many of them are on a host"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        training.train_and_evaluate(config_of(**changes), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mixer": "choco(gamma=0.5)", "exchange": "", "memory": "", "topology": "ring"},
        {"mixer": "diloco(h=4)", "memory": "none", "compressor": "qsgd(levels=7)"},
        {"overlap": 2, "scope": "per_leaf"},
        {"exchange": "power_sgd(rank=1)"},
        {"exchange": "sparse_reduce"},
        {"exchange": "budget(bits_per_step=4000)", "scope": "per_leaf"},
        {"exchange": "hierarchical(per_host=2)"},
        {"breakdown": True, "layers_every": "1 epoch"},
    ],
    ids=str,
)
def test_methods_agree_with_simulated_workers(changes, tmp_path):
    simulated = {"mapper": "vmap", "workers_per_device": 1}
    found = [
        training.train_and_evaluate(
            config_of(train_for="1 steps", **changes, **how), tmp_path / name
        )
        for name, how in (("shared", {}), ("simulated", simulated))
    ]
    params = (jax.tree.leaves(parallel.to_host(run.state.params)) for run in found)
    for one, other in zip(*params, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
