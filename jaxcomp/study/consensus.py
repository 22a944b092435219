"""Gossip without gradients: how fast workers agree."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import wire
from jaxcomp.base import Array, Mixer, State
from jaxcomp.compressors import make as make_compressor
from jaxcomp.errors import UserError
from jaxcomp.gossip._step_size import consensus_errors
from jaxcomp.gossip.topology import Topology
from jaxcomp.parallel import AXIS
from jaxcomp.scope import lift

__all__ = ["Consensus", "consensus", "step_sizes"]


class Consensus(NamedTuple):
    """A run of gossip."""

    # |x - mean|^2 / |x - mean|^2 at the start, before each round and after the last
    distances: np.ndarray
    round_bytes: int  # the messages of one worker in a round, mean of a cycle
    models: np.ndarray  # [workers, size] after the last round


def consensus(
    mixer: Mixer, models: np.ndarray, rounds: int, seed: int = 0
) -> Consensus:
    """Let workers gossip that learn nothing.

    Args:
      mixer: over the axis "workers".
      models: [workers, size], a vector for each worker.
      rounds: of gossip.
      seed: of the mixer's keys.

    Example:
      >>> from jaxcomp import make_mixer
      >>> mixer = make_mixer("d_psgd", "complete", workers=4)
      >>> run = consensus(mixer, np.float32([[0], [1], [2], [5]]), rounds=1)
      >>> run.distances.round(6).tolist(), run.models.ravel().tolist()
      ([1.0, 0.0], [2.0, 2.0, 2.0, 2.0])
    """
    if np.ndim(models) != 2 or mixer.workers not in (None, len(models)):
        raise UserError(
            f"{mixer.name!r} needs a vector for each of its workers, not an array of "
            f"shape {np.shape(models)}"
        )
    x = jnp.asarray(models, jnp.float32)

    def mixed(x: Array, state: State, key: Array, phase: int) -> tuple[Array, State]:
        step = mixer.mix(x, jnp.zeros_like(x), state, key, phase)
        return x + step.updates, step.state

    def of_phase(phase: int) -> jax.stages.Wrapped:
        each = lambda x, state, key: mixed(x, state, key, phase)  # noqa: E731
        return jax.jit(jax.vmap(each, in_axes=(0, 0, None), axis_name=AXIS))

    start = jax.jit(jax.vmap(mixer.init, axis_name=AXIS))(x)
    steps = {phase: of_phase(phase) for phase in set(mixer.schedule)}
    state, distances = start, [_distance(x)]
    for number in range(rounds):
        key = jax.random.fold_in(jax.random.key(seed), number)
        x, state = steps[mixer.phase(number)](x, state, key)
        distances.append(_distance(x))
    relative = np.array(distances) / (distances[0] or 1.0)
    return Consensus(relative, _bytes_of(mixer, x, start, mixed), np.asarray(x))


def step_sizes(
    compressor: str,
    graph: Topology,
    gammas: Sequence[float],
    size: int = 1000,
    rounds: int = 150,
) -> np.ndarray:
    """For each step size of CHOCO, by what factor gossip shrinks the distance.

    Args:
      compressor: spec string.
      graph: symmetric.
      gammas: step sizes.
      size: of the vectors.
      rounds: of gossip.

    Returns:
      |x - mean|^2 after all rounds by that before; above 1, the workers drift apart.

    Example:
      >>> from jaxcomp import topology
      >>> few, many = step_sizes("sign", topology("ring", 4), (0.01, 0.5), size=50)
      >>> bool(many < few < 1)
      True
    """
    codec = lift("per_leaf", make_compressor(compressor))
    return np.asarray(consensus_errors(codec, graph, size, tuple(gammas), rounds))


def _distance(x: Array) -> float:
    """|x - mean|^2, in the precision of the host."""
    wide = np.asarray(x, np.float64)
    return float(np.sum((wide - wide.mean(axis=0)) ** 2))


def _bytes_of(mixer: Mixer, x: Array, state: State, mixed: Any) -> int:
    """Bytes of one worker in a round, mean of a cycle."""
    one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), (x, state))
    total = 0
    for phase in mixer.schedule:
        found = wire.traced_collectives(
            lambda x, state, phase=phase: mixed(x, state, jax.random.key(0), phase)[0],
            *one,
            axis=AXIS,
            workers=len(x),
        )
        total += sum(wire.collective_bytes(found).values())
    return round(total / len(mixer.schedule))
