"""The distance of the parameters from those with which a run began."""

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training
from jaxcomp.training.diagnostics import distance_between, params_on_host
from jaxcomp.training.state import initial_variables, unmark
from tests.training.small import built, rows, small_config, stop_at


def distances(folder):
    """Of each epoch."""
    return [float(row["distance"]) for row in rows(folder / "metrics.csv")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return training.train_and_evaluate(small_config(), folder)


def test_it_is_that_of_the_parameters_of_the_seed(whole):
    task = built(small_config(seed=0)).task
    begin = jax.device_get(initial_variables(task, seed=0).params)
    end = parallel.to_host(whole.state).params
    squares = jax.tree.map(lambda x, y: float(np.sum((x - y) ** 2)), end, begin)
    right = np.sqrt(sum(jax.tree.leaves(squares)))
    first, last = distances(whole.folder)
    assert last == pytest.approx(right, rel=1e-5)
    assert 0 < first < last


def test_a_run_that_goes_on_knows_where_it_began(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(patched, 13)
        with pytest.raises(training.Interrupted):
            training.train_and_evaluate(small_config(), tmp_path)
    training.train_and_evaluate(small_config(), tmp_path)
    assert distances(tmp_path) == distances(whole.folder)


def test_of_workers_with_models_of_their_own_the_mean_counts():
    setup = built(
        small_config(
            mapper="vmap",
            mixer="d_psgd",
            topology="complete",
            exchange="",
            memory="",
            compressor="none",
        )
    )
    state = parallel.spread(setup.fresh(), setup.workers)
    alone = jax.tree.map(np.asarray, unmark(setup.fresh().params))
    assert distance_between(params_on_host(state), alone) == 0.0
    assert distance_between(alone, jax.tree.map(np.zeros_like, alone)) > 1
