"""Evaluation adds up on the devices: as exactly as the host would, in one copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import parallel
from jaxcomp.training.evaluation import _plus, make_evaluator
from tests.training.small import built, small_config


def test_totals_are_as_exact_as_in_float64():
    """Ten thousand batches, of which float32 would lose the last digits."""
    rng = np.random.default_rng(0)
    batches = rng.uniform(0, 1e4, size=(10_000, 3)).astype(np.float32)

    @jax.jit
    def added(batches):
        def plus(totals, batch):
            return _plus(totals, batch), None

        return jax.lax.scan(plus, jnp.zeros((3, 2)), batches)[0]

    totals = np.asarray(added(batches), np.float64).sum(axis=-1)
    np.testing.assert_allclose(totals, batches.astype(np.float64).sum(axis=0), 1e-12)
    plain = np.cumsum(batches, axis=0, dtype=np.float32)[-1]
    assert np.all(np.abs(plain - totals) > 1e-8 * totals)


def test_its_batches_are_its_own_and_one_array_comes_back(monkeypatch):
    copied, found, to_host = [], [], parallel.to_host
    monkeypatch.setattr(
        parallel, "to_host", lambda tree: copied.append(tree) or to_host(tree)
    )
    for batch in (0, 32, 512):
        setup = built(small_config(eval_batch_size=batch, mapper="vmap"))
        assert setup.eval_batch == (batch or 128)
        state = parallel.spread(setup.fresh(), setup.workers)
        found.append(make_evaluator(setup, state)(state))
    assert len(jax.tree.leaves(copied)) == len(found)
    for scores in found:
        assert scores.accuracy == found[0].accuracy
        assert scores.loss == pytest.approx(found[0].loss, rel=1e-6)
