"""Workers that share a device: the same numbers, and messages between devices only."""

import functools

import jax
import numpy as np
import pytest

from jaxcomp import make_exchange, make_mixer, parallel, wire
from jaxcomp.parallel import collectives, setup
from jaxcomp.parallel.collectives import AxisPart
from tests.test_parallel import TREES

WORKERS = 8


def crew_of(per_device):
    if per_device is None:
        return setup(WORKERS, "vmap")
    return setup(WORKERS, "shard_map", per_device=per_device)


def permutations():
    """Whole shifts, pairs, some that are silent, and one without any order."""
    shifts = [[(i, (i + by) % WORKERS) for i in range(WORKERS)] for by in (1, -1, 3, 4)]
    few = [(0, 5), (5, 0), (1, 2), (6, 7), (3, 1)]
    mixed = np.random.default_rng(1).permutation(WORKERS).tolist()
    return [*shifts, few, [(i, i ^ 1) for i in range(WORKERS)], list(enumerate(mixed))]


def everything(x, axis, hosts):
    """What each collective makes of x [workers, n], for the axis and for its parts."""
    parts = [AxisPart(axis, host, inside) for host in hosts for inside in (True, False)]
    groups = [
        [
            collectives.index(part),
            collectives.total(x, part),
            collectives.gather(x[0], part),
            collectives.swap(x[: collectives.size(part)], part),
        ]
        for part in parts
    ]
    return {
        "mean": collectives.mean(x, axis),
        "gather": collectives.gather(x, axis),
        "swap": collectives.swap(x, axis),
        "permute": [collectives.permute(x[0], p, axis) for p in permutations()],
        "groups": groups,
    }


def whole_numbers():
    rng = np.random.default_rng(0)
    return rng.integers(-9, 9, (WORKERS, WORKERS, 3)).astype(np.float32)


@pytest.mark.parametrize("per_device", [2, 4])
def test_every_collective_gives_what_it_gives_for_simulated_workers(per_device):
    """Of whole numbers, whose sums do not depend on the order."""
    hosts = [host for host in (4, 8) if host % per_device == 0]
    expected, found = (
        parallel.map_step(
            functools.partial(everything, axis=crew.axis, hosts=hosts),
            crew,
            in_axes=(0,),
            out_axes=0,
        )(parallel.place(whole_numbers(), crew, 0))
        for crew in (crew_of(None), crew_of(per_device))
    )
    jax.tree.map(np.testing.assert_array_equal, expected, found)


def sent_by(function, per_device):
    """Bytes of a device in each kind of collective, of rows of 3 float32 numbers."""
    crew = crew_of(per_device)
    mapped = parallel.map_step(
        functools.partial(function, axis=crew.axis), crew, in_axes=(0,), out_axes=0
    )
    rows = parallel.place(whole_numbers(), crew, 0)
    return dict(wire.collective_bytes(mapped.lower(rows).compile()))


def test_a_ring_sends_what_crosses_devices_and_nothing_else():
    ring, _, _, far, _, beside, _ = permutations()

    def permute(x, axis, pairs):
        return collectives.permute(x[0], pairs, axis)

    def by_shift(pairs):
        return sent_by(functools.partial(permute, pairs=pairs), 2)

    assert by_shift(ring) == {"collective-permute": 12}  # of two workers, one's row
    assert by_shift(far) == {"collective-permute": 24}
    assert by_shift(beside) == {}


def test_a_device_sends_the_messages_of_its_workers_and_one_sum():
    assert sent_by(lambda x, axis: collectives.gather(x[0], axis), 4) == {
        "all-gather": 4 * 12
    }
    assert sent_by(lambda x, axis: collectives.total(x[0], axis), 4) == {
        "all-reduce": 12
    }


def test_gossip_agrees():
    def step(models, updates, mixer):
        state = mixer.init(models)
        key = jax.random.key(3)
        for _ in range(3):
            updates, state, _ = mixer.mix(models, updates, state, key, 0)
            models = jax.tree.map(lambda x, u: x + u, models, updates)
        return models

    found = []
    for mapper, per_device in (("vmap", 1), ("shard_map", 2)):
        crew = setup(4, mapper, per_device=per_device)
        mixer = make_mixer("choco", "ring", 4, compressor="sign", axis=crew.axis)
        mapped = parallel.map_step(
            functools.partial(step, mixer=mixer), crew, in_axes=(0, 0), out_axes=0
        )
        found.append(mapped(*(parallel.place(tree, crew, 0) for tree in TREES[:2])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *found)


def test_hosts_and_types_that_lanes_cannot_have_are_refused():
    crew = crew_of(4)
    with pytest.raises(ValueError, match="say how many of them are on a host"):
        make_exchange("hierarchical", "top_k(keep=0.1)", axis=crew.axis)
    with pytest.raises(ValueError, match="give per_host a multiple of 4"):
        sent_by(lambda x, axis: collectives.total(x, AxisPart(axis, 2, inside=True)), 4)
    with pytest.raises(ValueError, match="check_vma with 4 workers on each device"):
        parallel.map_step(lambda x: x, crew, in_axes=(0,), out_axes=0, check_vma=True)
