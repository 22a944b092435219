"""One of each exchange and each mixer, for laws that all of them keep."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomp
from jaxcomp import exchanges
from jaxcomp.mixers import gossip, local
from jaxcomp.transforms.distributed import find_state

WORKERS = 4
EXCHANGES, MIXERS = tuple(exchanges.REGISTRY), (*gossip.REGISTRY, *local.REGISTRY)

# What those need that do not take the usual: arguments, compressor, graph.
ARGUMENTS = {
    "budget": "(bits_per_step=4000, every=2, ladder=[sign, block_scaled(4)])",
    "hierarchical": "(per_host=2)",
    "power_sgd": "(rank=1, min_rate=1)",
    **dict.fromkeys(local.REGISTRY, "(h=2)"),
}
COMPRESSORS = {
    **dict.fromkeys(("exact", "power_sgd", "majority_vote", "shared_scale"), "none"),
    **dict.fromkeys(("aligned_psum", "sparse_reduce"), "random_k(keep=0.3)"),
}
# Their collectives are those of `gather` and of `choco`.
ALIKE = {
    *("exact", "aligned_psum", "budget", "majority_vote", "power_sgd", "shared_scale"),
    *("simulated", "sparse_reduce", "two_phase", "dcd_psgd", "ecd_psgd"),
    *("choco_overlapped", "deep_squeeze", "diloco", "sparse_loco", "stale_hypercube"),
}
GRAPHS = {"delayed_sgd": "complete", "stale_hypercube": "hypercube(one_peer=True)"}


def exchange(name: str) -> jaxcomp.Exchange:
    """An exchange without memory."""
    spec = name + ARGUMENTS.get(name, "")
    return exchanges.make(spec, COMPRESSORS.get(name, "sign"))


def mixer(name: str, compressor: str = "none") -> jaxcomp.Mixer:
    """A mixer; in its graph some workers have more neighbours than others."""
    spec = name + ARGUMENTS.get(name, "")
    if name in local.REGISTRY:
        return jaxcomp.make_mixer(spec, exchange="exact")
    graph = GRAPHS.get(name, "star")
    return jaxcomp.make_mixer(spec, graph, WORKERS, compressor=compressor)


@functools.cache
def link(name: str) -> optax.GradientTransformationExtraArgs:
    """Either, as a link of a chain."""
    if name in EXCHANGES:
        return jaxcomp.distributed(exchange(name), seed=0)
    return jaxcomp.mixing(mixer(name), seed=0)


def trees(*lead: int, seed: int = 0) -> dict[str, jax.Array]:
    """A matrix and a vector, heavy-tailed, with leading axes."""
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (10, 9), "bias": (7,)}
    return {
        name: jnp.asarray(rng.standard_t(3, size=(*lead, *shape)), jnp.float32)
        for name, shape in shapes.items()
    }


def two_steps(name: str, start: Any, gradient: Any) -> Any:
    """A worker's model after each of two steps, and what it reports; under the axis."""
    tx = link(name)

    def step(carry: Any, factor: jax.Array) -> Any:
        x, state = carry
        given = jax.tree.map(lambda g: factor * g, gradient)
        updates, state = tx.update(given, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), (x, find_state(state).info.value)

    return jax.lax.scan(step, (start, tx.init(start)), jnp.array([1.0, -0.5]))[1]
