"""Where batch normalisation looks, from the config: the same under every mapper."""

import jax
import numpy as np
import pytest

from jaxcomp import parallel
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import is_per_worker
from jaxcomp.training.programs import traced_traffic
from tests.tiers import tiers
from tests.training.small import built, small_config

SYNC = {"exchange": "exact", "memory": "none", "model": "mlp(hidden=[8])"}


def after_two_steps(mapper, spec, **changes):
    config = small_config(**{**SYNC, "mapper": mapper, "batch_norm": spec, **changes})
    setup = built(config)
    workers, task = setup.workers, setup.task
    state = parallel.spread(setup.fresh(), workers)
    axes = parallel.axes(state)
    step = parallel.map_step(
        setup.step(setup.stages.at(0)),
        workers,
        in_axes=(axes, 0, 0),
        out_axes=(axes, 0),
    )
    for chosen in task.shares(0)[:2]:
        batch = [parallel.place(array[chosen], workers, 0) for array in task.train]
        state, metrics = step(state, *batch)
        assert np.all(parallel.to_host(metrics).applied)
    return parallel.to_host((state.params, state.stats))


@pytest.mark.parametrize("mapper", tiers(["pmap", "shard_map"], "shard_map".__eq__))
@pytest.mark.parametrize("spec", tiers(["sync", "sync(ghost=16)"], "sync".__eq__))
def test_synchronised_statistics_are_the_same_under_every_mapper(mapper, spec):
    params, stats = after_two_steps("vmap", spec)
    assert not is_per_worker(stats)
    for x in jax.tree.leaves(stats):
        assert x.shape == (8,)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        *(after_two_steps(mapper, spec), (params, stats)),
    )


@pytest.mark.parametrize(
    "changes",
    tiers(
        [
            {},
            {"accumulate": 2},
            {"exchange": "gather", "memory": "error_feedback"},
            {"exchange": "gather", "memory": "error_feedback", "overlap": 2},
        ],
        {}.__eq__,
    ),
    ids=str,
)
def test_lanes_of_a_device_share_statistics_with_all_other_workers(changes):
    """Two workers on each of two devices, and four on devices of their own."""
    shared, alone = (
        after_two_steps("shard_map", "sync", workers=4, workers_per_device=k, **changes)
        for k in (2, 1)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        shared,
        alone,
    )


def test_lanes_send_their_statistics_as_one_message_of_a_device():
    """Bytes of a step: a device sends for its two workers what one sends for itself."""
    config = {**SYNC, "mapper": "shard_map", "batch_norm": "sync", "workers": 4}
    shared, alone = (
        built(small_config(**config, workers_per_device=count)) for count in (2, 1)
    )
    sent = [traced_traffic(s, s.stages.at(0)).wire for s in (shared, alone)]
    assert sent[0] == sent[1]


def test_groups_divide_the_part_of_a_batch_that_is_computed_at_once():
    """128 examples over 2 workers in 2 parts: 32."""
    usual = {"mapper": "vmap", "accumulate": 2}
    with pytest.raises(UserError, match="divide the 32 examples .* 8, 16 or 32"):
        built(small_config(batch_norm="local(ghost=64)", **usual))
    assert built(small_config(batch_norm="local(ghost=32)", **usual))


def test_a_ghost_needs_a_model_that_takes_it():
    with pytest.raises(UserError, match="needs a model with an argument statistics"):
        built(small_config(mapper="vmap", model="lenet", batch_norm="local(ghost=2)"))
