"""The same numbers under every mapper, and the border that state crosses."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import make_exchange, parallel
from jaxcomp.core.types import PerWorker
from tests.tiers import tiers
from tests.workers import MAPPERS, averaging, gradients, residual_of, run, start

# Two tensors: programs take long to compile.
TREES = [
    {name: gradients(4, seed)[name] for name in ("kernel", "scale")}
    for seed in range(3)
]


@functools.cache
def steps_of(name, compressor, mapper):
    """Steps of four workers, who under "lanes" share two devices; compiled once."""
    mapper, shared = ("shard_map", 2) if mapper == "lanes" else (mapper, 1)
    crew = parallel.setup(4, mapper, per_device=shared)
    exchange = make_exchange(name, compressor, axis=crew.axis)
    state = start(exchange, TREES[0])
    traces = []

    def step(state, tree):
        traces.append(1)
        return averaging(exchange)(state, tree)

    options = {"mapper": mapper, "workers": 4, "per_device": shared}
    steps = run(step, state, TREES, **options)
    assert len(traces) == 1
    return steps


@pytest.mark.parametrize(
    ("compressor", "mapper"),
    tiers(
        itertools.product(
            ["top_k(keep=0.1)", "random_k(keep=0.2)", "top_k(keep=0.1) | top_k(0.5)"],
            ["pmap", "shard_map", "lanes"],
        ),
        # What shard_map does with one, it does with all.
        lambda case: (
            case[0] == "top_k(keep=0.1)" or case == ("random_k(keep=0.2)", "pmap")
        ),
    ),
)
def test_gathered_sparsifiers_agree_to_the_bit(compressor, mapper):
    expected, found = (steps_of("gather", compressor, m) for m in ("vmap", mapper))
    for a, b in zip(expected, found, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a.shared, b.shared)
        jax.tree.map(
            np.testing.assert_array_equal, residual_of(a.state), residual_of(b.state)
        )


DEFAULT = {
    *(("exact", mapper) for mapper in ("pmap", "shard_map")),
    *((name, "pmap") for name in ("gather", "aligned_psum")),
    ("two_phase", "lanes"),
}


@pytest.mark.parametrize(
    ("name", "compressor", "mapper"),
    tiers(
        [
            (*method, mapper)
            for method in [
                ("exact", "none"),
                ("gather", "none"),
                ("gather", "sign"),
                ("gather", "qsgd(levels=7, damped=True)"),
                ("aligned_psum", "random_k(keep=0.2)"),
                ("hierarchical(per_host=2)", "top_k(keep=0.1)"),
                ("power_sgd(rank=1)", None),
                ("sparse_reduce", "top_k(keep=0.1)"),
                ("two_phase", "top_k(keep=0.1)"),
            ]
            for mapper in ("pmap", "shard_map", "lanes")
        ],
        lambda case: (
            (case[0], case[2]) in DEFAULT and (case[0] != "gather" or case[1] == "sign")
        ),
    ),
)
def test_all_others_agree_to_rounding(name, compressor, mapper):
    expected, found = (steps_of(name, compressor, m) for m in ("vmap", mapper))
    # One step: a rounding difference in a residual may move a later stochastic level.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        expected[0].shared,
        found[0].shared,
    )


@pytest.mark.parametrize("mapper", MAPPERS)
def test_per_worker_state_survives_a_round_trip_through_the_host(mapper):
    """What a checkpoint does: all residuals out, all residuals in, same numbers.

    Residuals that are declared replicated run without an error, and lose all but one
    worker's here.
    """
    exchange = make_exchange("gather", "top_k(keep=0.1)")
    crew = parallel.setup(4, mapper)
    state = parallel.spread(start(exchange, TREES[0]), crew)
    axes = parallel.axes(state)
    step = parallel.map_step(
        averaging(exchange), crew, in_axes=(axes, 0), out_axes=(None, 0, axes)
    )

    def advance(state, tree):
        return step(state, parallel.place(tree, crew, 0))

    _, _, state = advance(state, TREES[0])
    kept = residual_of(state)["kernel"]
    assert len({bytes(np.asarray(row)) for row in kept}) == 4, "workers must differ"
    restored = parallel.place(parallel.to_host(state), crew, axes)
    expected, found = advance(state, TREES[1]), advance(restored, TREES[1])
    jax.tree.map(np.testing.assert_array_equal, expected[0], found[0])
    jax.tree.map(
        np.testing.assert_array_equal, residual_of(expected[2]), residual_of(found[2])
    )


def test_axes_follow_the_marks():
    state = {"kept": PerWorker({"x": 1, "y": (2, 3)}), "count": 4, "empty": ()}
    expected = {"kept": PerWorker(0), "count": None, "empty": None}
    assert parallel.axes(state) == expected


@pytest.mark.parametrize("mapper", MAPPERS)
def test_an_argument_without_arrays_leaves_the_axes_of_others_alone(mapper):
    """As the state of an exchange that keeps nothing."""
    crew = parallel.setup(4, mapper)
    tree = parallel.place({"a": np.ones((4, 3)), "b": np.ones((4, 5))}, crew, 0)
    shapes = []

    def step(tree, state):
        shapes.append({name: x.shape for name, x in tree.items()})
        return tree

    parallel.map_step(step, crew, in_axes=(0, None), out_axes=0)(tree, ())
    assert shapes == [{"a": (3,), "b": (5,)}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mapper": "xmap"}, "unknown mapper 'xmap'. Valid: pmap, shard_map, vmap"),
        ({"workers": 0}, "workers is at least 1, not 0"),
        ({"workers": 1_000_000}, "1024 devices at most, not 1000000: mapper 'vmap'"),
        ({"per_device": 0}, "workers_per_device is at least 1, not 0"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        parallel.setup(**arguments)


def test_a_state_that_uses_an_array_twice_can_be_donated():
    workers = parallel.setup(2, "vmap")
    zeros = jnp.zeros(3)
    state = parallel.spread({"a": zeros, "b": zeros}, workers)
    step = parallel.map_step(
        lambda s: jax.tree.map(lambda x: x + 1, s),
        workers,
        in_axes=(None,),
        out_axes=None,
        donate_argnums=(0,),
    )
    for x in jax.tree.leaves(parallel.to_host(step(state))):
        np.testing.assert_array_equal(x, np.ones(3))
