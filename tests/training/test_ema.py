"""Averaged weights: what they are, and a run with them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import parallel, training
from jaxcomp.core.types import PerWorker
from jaxcomp.training.console import summary
from jaxcomp.training.state import exponential, init_state, unmark
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks.classification import classifier
from tests.training.small import assert_same_state, built, rows, small_config, stop_at

DECAY, STEPS, WORKERS = 0.4, 7, 2


class Linear:
    """Two logits, each a weight times a feature."""

    def init(self, key, images, train):
        return {"params": {"w": jnp.ones(2)}}

    def apply(self, variables, images, train, mutable, rngs):
        return variables["params"]["w"][None] * images, {}


LINKS = {
    False: lambda: jaxcomp.distributed(jaxcomp.make_exchange("exact", memory="none")),
    True: lambda: jaxcomp.mixing(
        jaxcomp.make_mixer("d_psgd", "ring", WORKERS, compressor="none")
    ),
}


@pytest.mark.parametrize("own_models", [False, True])
def test_it_is_the_average_of_each_workers_weights(own_models):
    """min(d, (1 + t) / (10 + t)) of what it was; a step that is skipped moves nothing.

    With models of their own, the worker of the bad step mixes all the same.
    """
    link = LINKS[own_models]()
    links = [optax.sgd(0.5), link] if own_models else [link, optax.sgd(0.5)]
    tx = optax.with_extra_args_support(optax.chain(*links))
    none = (np.zeros((1, 2), np.float32), np.zeros(1))
    as_it_is = {"augment": lambda x, key: x, "normalize": lambda x: x}
    task = classifier(Linear(), none, none, lambda epoch: np.zeros(0), **as_it_is)
    crew = parallel.setup(WORKERS, "vmap")
    fresh = init_state(
        task, tx, seed=0, examples=4, own_models=own_models, ema=exponential(DECAY)
    )
    state = parallel.spread(fresh, crew)
    axes = parallel.axes(state)
    step = make_train_step(task, tx, seed=0, axis=crew.axis, ema=exponential(DECAY))
    mapped = parallel.map_step(step, crew, in_axes=(axes, 0, 0), out_axes=(axes, 0))
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS, WORKERS, 4, 2)).astype(np.float32)
    images[3, 1] = np.nan
    labels = rng.integers(2, size=(STEPS, WORKERS, 4))
    average = weights = np.asarray(unmark(state.params)["w"])
    for t in range(STEPS):
        state, _ = mapped(state, images[t], labels[t])
        share = min(DECAY, (1 + t) / (10 + t))
        weights = np.asarray(unmark(state.params)["w"])
        if own_models or t != 3:
            average = share * average + (1 - share) * weights
        np.testing.assert_allclose(unmark(state.ema)["w"], average, rtol=1e-5)
    assert isinstance(state.ema, PerWorker) == own_models
    assert np.any(average != weights)


@pytest.mark.slow
def test_a_run_evaluates_both_and_goes_on_to_the_bit(tmp_path, monkeypatch):
    config = small_config(ema=0.9, mapper="vmap")
    whole = training.train_and_evaluate(config, tmp_path / "whole")
    assert "averaged weights" in summary(whole)
    with monkeypatch.context() as patched:
        stop_at(patched, 5)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(config, tmp_path / "parts")
    parts = training.train_and_evaluate(config, tmp_path / "parts")
    assert_same_state(whole.state, parts.state)
    last, other = (
        rows(tmp_path / name / "metrics.csv")[-1] for name in ("whole", "parts")
    )
    assert last["ema_accuracy"] == other["ema_accuracy"] != last["test_accuracy"]
    assert whole.ema == parts.ema == pytest.approx(float(last["ema_accuracy"]))
    scores = training.evaluate(config, tmp_path / "whole", "latest")
    assert scores["ema_accuracy"] == whole.ema
    assert scores["test_accuracy"] == whole.test


def test_without_a_decay_there_is_no_average():
    state = jax.eval_shape(built(small_config()).fresh)
    assert state.ema == ()
    with pytest.raises(ValueError, match="ema is .*, not 1.0"):
        built(small_config(ema=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [False, True])
def test_gossip_averages_the_averages(elastic, tmp_path):
    settings: dict[str, Any] = {"mixer": "local_sgd(h=2)", "ema": 0.9}
    settings |= {"workers": 4, "mapper": "vmap", "elastic": elastic}
    run = training.train_and_evaluate(
        small_config(**settings, train_for="1 epoch"), tmp_path
    )
    assert run.ema is not None
    if elastic:
        settings["workers"] = 2
    longer = training.train_and_evaluate(small_config(**settings), tmp_path)
    assert unmark(longer.state.ema)["Dense_0"]["kernel"].shape[0] == settings["workers"]
