"""A mixer on a mesh: each shard is mixed with the same shard of the neighbours."""

from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Mixer, PerWorker, State, Tree
from jaxcomp.border import check_patterns
from jaxcomp.sharded.cuts import on_devices
from jaxcomp.sharded.data_parallel import Comm
from jaxcomp.sharded.layout import (
    Layout,
    first_states,
    in_parts,
    layouts,
    with_shared_clocks,
)
from jaxcomp.sharded.links import Stage
from jaxcomp.sharded.models import in_front, of_one, with_axis, without_axis
from jaxcomp.transform import mixing

__all__ = ["on_mesh"]


def on_mesh(mixer: Mixer, mesh: Mesh, data: tuple[str, ...], seed: int) -> Stage:
    """`mixing` for models that have an axis of workers in front.

    Args:
      mixer: over the axes of the data.
      mesh: of the models.
      data: the axes of the workers.
      seed: of all keys.
    """
    # Without a seed: keys are passed to `update`.
    link = mixing(mixer._replace(patterns=()))

    def planned(models: Tree, specs: tuple[P, ...]) -> list[Layout]:
        def own_state(params: Tree) -> PerWorker:
            return PerWorker(link.init(params))

        plan = layouts(own_state, of_one(models, mesh, data), specs, mesh, data)
        return [x._replace(places=with_shared_clocks(x.places.value)) for x in plan]

    def init(models: Tree, specs: tuple[P, ...]) -> Comm:
        check_patterns(mixer.patterns, models)

        # It runs under the axis, where workers can ask for each other's first models.
        def of_part(models: Tree) -> State:
            return link.init(without_axis(models))

        plan, of_models = planned(models, specs), in_front(models, specs, data)
        return Comm(first_states(of_part, plan, models, of_models, mesh), specs)

    def update(updates: Tree, comm: Comm, models: Tree) -> tuple[Tree, Comm]:
        plan = planned(models, comm.specs)
        structure = jax.tree.structure(models)

        def on_device(
            updates: Tree, models: Tree, links: tuple[State, ...]
        ) -> tuple[Tree, tuple[State, ...]]:
            given, params = without_axis(updates), without_axis(models)

            def of_part(layout: Layout, state: Any, key: Any) -> tuple[Tree, State]:
                parts = layout.part(given), state, layout.part(params)
                return link.update(*parts, key=key)

            whole, after = in_parts(plan, links, seed, structure, of_part)
            return with_axis(whole), after

        of_models = in_front(models, comm.specs, data)
        of_links = tuple(x.specs for x in plan)
        specs = (of_models, of_models, of_links), (of_models, of_links)
        mapped = on_devices(on_device, mesh, *specs)
        updates, links = mapped(updates, models, comm.links)
        return updates, Comm(links, comm.specs)

    return Stage(init, update)
