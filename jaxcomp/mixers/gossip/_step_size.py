"""The consensus step size: given, from theory, or tuned on a problem without gradients.

How far a worker may step towards its neighbours' estimates depends on their errors. If
it steps too far, the models drift apart; if too little, they take long to agree.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.specs import Range, SpecError
from jaxcomp.core.types import Array, Compressor, Spec
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan, lift
from jaxcomp.scope.contraction import split_lossless
from jaxcomp.scope.plans import groups_of, joined_spec, per_leaf

StepSize = Annotated[float, Range(above=0, most=1)]
Gamma = StepSize | Literal["theory", "tuned"]

ROUNDS = 150  # of gossip in tuning
LARGEST = 2048  # elements of the vectors that tuning agrees on
GRID = tuple(float(g) for g in np.geomspace(0.01, 1.0, 13).round(4))


def step_sizer(gamma: Gamma, plan: Plan, graph: Topology) -> Callable[[Spec], float]:
    """The consensus step size for trees of a spec.

    Args:
      gamma: a number in (0, 1], "theory" or "tuned".
      plan: of the compressor.
      graph: symmetric.
    """
    codec = lift(plan)
    if gamma == "theory":
        return lambda spec: theory(codec, graph, spec)
    if gamma == "tuned":
        return _tuner(plan, graph)
    number = float(gamma)
    return lambda spec: number


def _tuner(plan: Plan, graph: Topology) -> Callable[[Spec], float]:
    """The least of the tuned step sizes of the compressors that a tree gets."""

    @functools.cache
    def best(compressor: Compressor, size: int) -> float:
        return tuned(lift(per_leaf(compressor)), graph, size)

    def of(spec: Spec) -> float:
        lossless, lossy = split_lossless(groups_of(plan, spec))
        sizes: dict[Compressor, int] = {}
        for group in lossy or lossless:
            size = min(joined_spec(group).size, LARGEST)
            sizes[group.compressor] = max(size, sizes.get(group.compressor, 0))
        return min((best(*pair) for pair in sizes.items()), default=1.0)

    return of


def theory(codec: Compressor, graph: Topology, spec: Spec) -> float:
    """The step size at which convergence is proved.

    gamma = d^2 w / (16 d + d^2 + 4 b^2 + 2 d b^2 - 8 d w), with d the spectral gap, w
    the compressor's contraction and b = |I - W|. Much larger step sizes work as well.

    Args:
      codec: compressor of trees.
      graph: symmetric.
      spec: of the tree.

    References:
      Koloskova, Stich and Jaggi, arXiv:1902.00340, 2019 (theorem 2).
    """
    w = codec.contraction(spec)
    if not w:
        raise SpecError(
            f"gamma='theory' needs a compressor with a contraction, and {codec.name!r} "
            "declares none. Give a number, or 'tuned'"
        )
    d = graph.spectral_gap
    b = float(np.linalg.norm(np.eye(graph.size) - graph.matrix, 2))
    return d**2 * w / (16 * d + d**2 + 4 * b**2 + 2 * d * b**2 - 8 * d * w)


def tuned(codec: Compressor, graph: Topology, size: int) -> float:
    """The step size of a grid with which Gaussian vectors agree fastest.

    Args:
      codec: compressor of trees.
      graph: symmetric.
      size: of the vectors.

    Raises:
      SpecError: the vectors drift apart with all of them.
    """
    # The result is a constant, even if a program is being traced right now.
    with jax.ensure_compile_time_eval():
        errors = np.asarray(consensus_errors(codec, graph, size, GRID))
    errors = np.where(np.isfinite(errors), errors, np.inf)
    best = int(np.argmin(errors))
    if errors[best] >= 1:
        raise SpecError(
            f"workers that gossip with {codec.name!r} on {graph.name!r} drift apart at "
            f"every step size from {GRID[0]} to {GRID[-1]}: it adds more error than it "
            "sends. Take more levels, or smaller buckets"
        )
    return GRID[best]


def consensus_errors(
    codec: Compressor,
    graph: Topology,
    size: int,
    gammas: tuple[float, ...],
    rounds: int = ROUNDS,
) -> Array:
    """For each step size, by what factor gossip shrinks the distance to the mean.

    That is |x - mean|^2 after all rounds, divided by |x - mean|^2 before them.

    Args:
      codec: compressor of trees.
      graph: symmetric.
      size: of the vectors.
      gammas: step sizes.
      rounds: of CHOCO without gradients.
    """
    weights = jnp.asarray(graph.matrix, jnp.float32)
    start = jax.random.normal(jax.random.key(0), (graph.size, size))
    mean = jnp.mean(start, axis=0, keepdims=True)
    keys = jax.random.split(jax.random.key(1), (rounds, graph.size))

    def message(x: Array, state: object, key: Array) -> tuple[Array, object]:
        payload, state = codec.compress({"w": x}, state, key)
        return codec.decompress(payload, {"w": x})["w"], state

    def last(gamma: Array) -> Array:
        def step(carry: tuple, keys: Array) -> tuple[tuple, None]:
            x, public, states = carry
            said, states = jax.vmap(message)(x - public, states, keys)
            public = public + said
            return (x + gamma * (weights @ public - public), public, states), None

        fresh = codec.init({"w": jax.ShapeDtypeStruct((size,), jnp.float32)})
        states = jax.tree.map(lambda s: jnp.stack([s] * graph.size), fresh)
        (x, _, _), _ = jax.lax.scan(step, (start, jnp.zeros_like(start), states), keys)
        return jnp.sum(jnp.square(x - mean)) / jnp.sum(jnp.square(start - mean))

    return jax.jit(lambda values: jax.lax.map(last, values))(jnp.asarray(gammas))
