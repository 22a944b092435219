"""Bytes that leave a worker, and the ratio: by hand, and by passing messages around."""

from collections import Counter, defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.core.types import Mixer
from jaxcomp.core.units import times_fewer
from jaxcomp.mixers import gossip
from jaxcomp.parallel import collectives
from jaxcomp.parallel.mapping import on_device
from tests.every_method import EXCHANGES, exchange
from tests.tiers import tiers

SIZE = 960
DENSE = 4 * SIZE
TREE = {"w": jax.ShapeDtypeStruct((40, 24), jnp.float32)}
KEY = jax.eval_shape(lambda: jax.random.key(0))


def traced(
    method: Any, workers: int, phase: int = 0, tree: Any = TREE
) -> list[wire.Collective]:
    """The collectives of one step of an exchange or a mixer."""
    crowd = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((workers, *x.shape), x.dtype), tree
    )
    begun = jax.eval_shape(jax.vmap(method.init, axis_name="workers"), crowd)
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), begun)

    def step(x: Any, state: Any, key: Any) -> Any:
        if isinstance(method, Mixer):
            return tuple(method.mix(x, x, state, key, phase))[:2]
        return method.average(x, state, key).mean

    return wire.traced_collectives(
        step, tree, state, KEY, axis="workers", workers=workers
    )


def sent_around(found: list[wire.Collective], per_host: int) -> float:
    """Bytes that leave the host which sends the most, when collectives are run.

    Rings pass on pieces or messages, round by round; others send to each worker.
    """
    left: dict[int, float] = defaultdict(float)

    def send(source: int, target: int, nbytes: float) -> None:
        if source // per_host != target // per_host:
            left[source // per_host] += nbytes

    for c in found:
        for group in c.groups:
            count, piece = len(group), c.nbytes / len(group)
            rounds, each = {
                "all-reduce": (2 * (count - 1), piece),
                "all-gather": (count - 1, c.nbytes),
                "all-to-all": (0, 0),
                "collective-permute": (0, 0),
            }[c.kind]
            for source, target in zip(group, (*group[1:], group[0]), strict=True):
                send(source, target, rounds * each)
            if c.kind == "all-to-all":
                for source in group:
                    for target in group:
                        send(source, target, piece)
            if c.kind == "collective-permute":
                send(group[0], group[1], c.nbytes)
    return max(left.values(), default=0.0)


def ring(nbytes: float, workers: int) -> float:
    return 2 * (workers - 1) / workers * nbytes


def signs(elements: int) -> int:
    """A bit each in whole words, and the scale."""
    return 4 * -(-elements // 32) + 4


# Bytes that leave one of n workers, by hand. In two phases a worker sends a row to each
# other one, and its own row to all of them.
BY_HAND = {
    "exact": lambda n: ring(DENSE, n),
    "simulated": lambda n: ring(DENSE, n),
    "aligned_psum": lambda n: ring(4 * 0.3 * SIZE, n),
    "power_sgd": lambda n: ring(4 * (40 + 24), n),
    "gather": lambda n: (n - 1) * signs(SIZE),
    "budget": lambda n: (n - 1) * 4000 / 8,
    "two_phase": lambda n: 2 * (n - 1) * signs(SIZE // n),
    # Five votes of three kinds in a byte.
    "majority_vote": lambda n: 2 * (n - 1) * (4 * -(-SIZE // n // 20) + 4),
    # The largest magnitude, and levels whose sum fits into 3.2, 4 or 5.3 bits.
    "shared_scale": lambda n: (n - 1) * 4 + ring(4 * SIZE / {2: 10, 4: 8, 8: 6}[n], n),
    # Dense between two workers of a host, signs of a half between hosts.
    "hierarchical": lambda n: DENSE + (n // 2 - 1) * signs(SIZE // 2) + DENSE / 2,
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_leaves_a_worker_by_an_exchange(name):
    for workers in (2, 4, 8):
        found = traced(exchange(name), workers)
        left = wire.link_bytes(found)
        for per_host in (1, 2):
            assert wire.link_bytes(found, per_host) == pytest.approx(
                sent_around(found, per_host)
            )
        if name in BY_HAND:
            assert left == pytest.approx(BY_HAND[name](workers))
        exact = wire.exact_bytes(TREE, workers)
        ratio = times_fewer(exact, left)
        if name in ("exact", "simulated"):
            assert ratio == 1
        if name == "gather":  # the ratio of the messages, times 2 / N
            assert ratio == pytest.approx(DENSE / signs(SIZE) * 2 / workers)
        if name == "hierarchical" and workers > 2:  # each host is two workers
            between = 2 * (workers // 2 - 1) * signs(SIZE // 2)
            assert wire.link_bytes(found, 2) == between
            assert exchange(name).per_host == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_the_ratio_of_exact_is_one(dtype):
    """Of any dtype, also where what is sent is wider."""
    tree = {"w": jax.ShapeDtypeStruct((SIZE,), dtype), "b": TREE["w"]}
    for workers in (1, 2, 3, 8):
        found = traced(exchange("exact"), workers, tree=tree)
        exact = wire.exact_bytes(tree, workers)
        assert wire.link_bytes(found) == exact
        ratio = times_fewer(exact, wire.link_bytes(found))
        assert ratio == 1 if workers > 1 else np.isnan(ratio)


GRAPHS = {
    **{"complete": 7, "ring": 2, "ring_antipode": 3, "torus": 3, "star": 7},
    **{"hypercube": 3, "exponential": 3, "hypercube(one_peer=True)": 1},
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_leaves_a_worker_by_gossip(graph):
    """A message to each neighbour of who has the most, in each round of the graph."""
    network = jaxcomp.topology(graph, 8)
    for name in gossip.REGISTRY:
        try:
            method = gossip.make(name, network, "none")
        except ValueError:
            continue  # it does not take this graph
        message = 4 * 8 + 8 * DENSE if name == "stale_hypercube" else DENSE
        for phase in {*method.schedule}:
            found = traced(method, 8, phase)
            assert wire.link_bytes(found, 2) == sent_around(found, 2)
            # Which all gather, whatever the graph.
            degree = 7 if name == "delayed_sgd" else GRAPHS[graph]
            assert wire.link_bytes(found) == degree * message, name


@pytest.mark.parametrize(
    ("graph", "per_device"),
    tiers(
        [(graph, count) for graph in GRAPHS for count in (1, 2, 4)],
        lambda case: case in [("complete", 2), ("star", 4), ("torus", 1)],
    ),
)
def test_traced_bytes_of_gossip_are_those_of_the_program(graph, per_device):
    """With several workers a device, each device hears of a worker once."""
    crew = parallel.setup(8, "shard_map", per_device=per_device)
    slots = [slot.pairs for slot in jaxcomp.topology(graph, 8).rounds[0].slots]

    def step(x: Any) -> Any:
        return collectives.permute_each(x, slots, crew.axis)

    x = jax.ShapeDtypeStruct((per_device, 9), jnp.float32)
    axes = {"in_axes": (0,), "out_axes": [0] * len(slots)}
    found = wire.traced_collectives(
        on_device(step, crew, **axes),
        x,
        axis=crew.device_axis,
        workers=crew.devices,
    )
    mapped = parallel.map_step(step, crew, **axes)
    program = mapped.lower(
        parallel.place(np.ones((8, 9), np.float32), crew, 0)
    ).compile()
    assert wire.collective_bytes(found) == wire.collective_bytes(program)
    assert wire.link_bytes(found) == wire.link_bytes(wire.collectives(program))
    awaited = {
        (source, target // per_device)
        for pairs in slots
        for source, target in pairs
        if source // per_device != target // per_device
    }
    sent = Counter(source // per_device for source, _ in awaited)
    assert wire.link_bytes(found) == 36 * max(sent.values(), default=0)
