"""Stale hypercube: a simulation of updates that take several steps to arrive."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.coding.payloads import fuse, split
from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Axis, Mixed, Mixer, Resize, Tree
from jaxcomp.exchanges import nothing_lost
from jaxcomp.mixers.gossip._neighbours import plus
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.mixers.initial_models import mean_start
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan


class CubeState(NamedTuple):
    """State of `stale_hypercube`: the newest update known of each worker."""

    step: Array  # [] int32
    stamps: Array  # [N] int32: the step of each update; 0: none has arrived
    table: Tree  # leaves [N, ...]: the updates
    way: Tree  # mean of the starts, minus this worker's; 0 after the first step


def stale_hypercube(plan: Plan, graph: Topology, axis: Axis) -> Mixer:
    """Swap tables of all workers' newest updates with one other worker a step.

    In step t workers i and i xor 2^(t mod log2 N) swap their tables, and both keep the
    newer one of each entry. Then x_i <- x_i + the mean of the entries that have arrived
    so far. An update is at most log2 N steps old when it arrives. It is a simulation of
    staleness: a message is a whole table, N times as large as the model.

    With another number of workers, models are averaged or copied, the tables are empty
    again, and the next step brings all models to their mean, as after different starts.
    So the mean model stays.

    Args:
      plan: has to compress nothing.
      graph: "hypercube(one_peer=True)".
      axis: the mapped axis.
    """
    if any(compressor.name != "none" for compressor in plan.compressors):
        message = f"sends what it heard as it is, and the compressor is {plan.title!r}"
        raise SpecError(f"{message}. Set it to 'none'")
    if not graph.name.startswith("hypercube") or graph.degree > 1:
        raise SpecError(
            "stale_hypercube has one peer a step: set the topology to "
            f"'hypercube(one_peer=True)', not {graph.name!r}"
        )

    def init(params: Tree) -> CubeState:
        table = jax.tree.map(
            lambda s: jnp.zeros((graph.size, *s.shape), s.dtype), wide_spec(params)
        )
        way = plus(mean_start(params, graph.size, axis), widen(params), -1)
        return CubeState(jnp.int32(0), jnp.zeros(graph.size, jnp.int32), table, way)

    def mix(
        params: Tree, updates: Tree, state: CubeState, key: Array, phase: int
    ) -> Mixed:
        place, step = collectives.index(axis), state.step + 1
        stamps = state.stamps.at[place].set(step)
        table = jax.tree.map(
            lambda rows, u: rows.at[place].set(u), state.table, widen(updates)
        )
        for slot in graph.rounds[phase].slots:
            words = collectives.permute(fuse((stamps, table)), slot.pairs, axis)
            their_stamps, their_table = split(words, spec_of((stamps, table)))
            fresher = their_stamps > stamps
            table = jax.tree.map(
                lambda theirs, ours, new=fresher: jnp.where(
                    new.reshape(-1, *[1] * (ours.ndim - 1)), theirs, ours
                ),
                their_table,
                table,
            )
            stamps = jnp.maximum(their_stamps, stamps)
        heard = jnp.sum(stamps > 0).astype(jnp.float32)

        # Entries that have not arrived are 0.
        def mean(rows: Array) -> Array:
            return jnp.sum(rows, axis=0) / heard.astype(rows.dtype)

        age = jnp.mean((step - stamps).astype(jnp.float32))
        info = nothing_lost()._replace(extra={"mean_age": age})
        new = CubeState(step, stamps, table, zeros_like_spec(state.way))
        return Mixed(plus(state.way, jax.tree.map(mean, table)), new, info)

    def rebuild(state: CubeState, params: Tree, workers: int) -> CubeState:
        return jax.jit(jax.vmap(init))(params)._replace(step=state.step)

    title = f"stale_hypercube of {graph.size} workers"
    schedule, figures = tuple(range(len(graph.rounds))), ("mean_age",)
    resize = (Resize(CubeState, ("stamps", "table", "way"), rebuild),)
    return Mixer(
        title, init, mix, axis, schedule, figures, simulated=True, resize=resize
    )
