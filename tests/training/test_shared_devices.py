"""Runs with several workers on each device."""

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training
from jaxcomp.core.errors import UserError
from tests.training.small import assert_same_state, rows, small_config

SHARED = {"mapper": "shard_map", "workers_per_device": 2, "workers": 4}


def config_of(**changes):
    return small_config(
        **{**SHARED, "train_for": "13 steps", "schedule": "constant", **changes}
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run that several tests look at."""
    folder = tmp_path_factory.mktemp("run")
    return training.train_and_evaluate(config_of(), folder)


@pytest.mark.slow
def test_it_learns_what_simulated_workers_learn(finished, tmp_path):
    config = config_of(mapper="vmap", workers_per_device=1)
    simulated = training.train_and_evaluate(config, tmp_path)
    for table in ("metrics.csv", "steps.csv"):
        here, there = (rows(r.folder / table) for r in (finished, simulated))
        for one, other in zip(here, there, strict=True):
            for name in ("train_loss", "test_loss", "loss"):
                if one.get(name):
                    assert float(one[name]) == pytest.approx(
                        float(other[name]), rel=1e-3
                    )
    # Rounding differs, and moves the choice of hardly any element.
    pairs = zip(
        *(
            jax.tree.leaves(parallel.to_host(r.state.params))
            for r in (finished, simulated)
        ),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=0.02)
    assert finished.traffic.wire == 2 * simulated.traffic.wire  # two messages


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
        ({"workers_per_device": 0}, "workers_per_device is a whole number"),
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
