"""What gossip sends, counted in the compiled program."""

import jax
import optax
import pytest

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.core.types import PerWorker
from jaxcomp.mixers import gossip
from tests.gossip.runs import problem
from tests.tiers import tiers


def program(mixer, params, workers, mapper="pmap"):
    """One step of the chain, compiled for real workers."""
    crew = parallel.setup(workers, mapper)
    tx = optax.chain(optax.sgd(0.1, momentum=0.9), jaxcomp.mixing(mixer, seed=0))

    def step(own, gradient):
        params, state = own.value
        updates, state = tx.update(gradient, state, params)
        return PerWorker((optax.apply_updates(params, updates), state))

    own = PerWorker(jax.eval_shape(lambda p: (p, tx.init(p)), params))
    stacked = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((workers, *x.shape), x.dtype), (own, params)
    )
    mapped = parallel.map_step(
        step, crew, in_axes=(PerWorker(0), 0), out_axes=PerWorker(0)
    )
    return mapped.lower(*stacked).compile()


@pytest.mark.parametrize(
    ("graph", "messages"),
    tiers(
        [
            (("ring", 8), 2),
            (("ring", 2), 1),
            (("torus", 6), 3),
            (("star", 5), 4),
            (("exponential", 8), 3),
            (("complete", 4), 3),
        ],
        # A whole shift, a slot with silent workers, and edges with a direction.
        lambda case: case[0] in [("ring", 8), ("star", 5), ("exponential", 8)],
    ),
    ids=str,
)
@pytest.mark.parametrize("mapper", tiers(["pmap", "shard_map"], "pmap".__eq__))
def test_one_message_for_each_neighbour_slot(graph, messages, mapper):
    """Whatever the number of tensors, and nothing but permutations."""
    graph = jaxcomp.topology(*graph)
    name, compressor = ("choco", "sign") if graph.symmetric else ("d_psgd", "none")
    mixer = gossip.make(name, graph, compressor)
    start = problem(graph.size).start
    found = wire.collectives(program(mixer, start, graph.size, mapper))
    assert [c.kind for c in found] == ["collective-permute"] * messages
    # sign: a bit for each element and a scale for each tensor, in whole words.
    payload = 4 + 1 + 4 + 6 if compressor == "sign" else 4 * 47
    assert all(payload <= c.nbytes <= payload + 8 for c in found)


@pytest.mark.parametrize(
    "name",
    tiers(
        sorted(set(gossip.REGISTRY) - {"stale_hypercube"}),
        {"choco", "d_psgd", "delayed_sgd"}.__contains__,
    ),
)
def test_simulated_workers_report_the_same_bytes(name):
    """What is traced for vmap is what is compiled for devices."""
    graph = jaxcomp.topology("complete" if name == "delayed_sgd" else "ring", 4)
    compressor = "none" if name == "d_psgd" else "top_k(keep=0.1)"
    mixer, start = gossip.make(name, graph, compressor), problem(4).start
    tx = jaxcomp.mixing(mixer, seed=0)
    state = tx.init(start)
    traced = wire.traced_collectives(
        lambda p: tx.update(p, state, p), start, axis="workers", workers=4
    )
    compiled = program(mixer, start, 4)
    assert wire.collective_bytes(traced) == wire.collective_bytes(compiled)
