"""How the state of an exchange or a mixer is laid out on a mesh.

Only params that are cut over the same axes are exchanged together. If the message of a
replicated tensor depended on a shard beside it, devices would receive different values,
and the tensor would not stay replicated.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Array, PerWorker, State, Tree, is_clock, is_per_worker
from jaxcomp.sharded.cuts import axes_of, entry, on_devices

__all__ = ["Layout", "first_states", "in_parts", "layouts", "with_shared_clocks"]


@dataclasses.dataclass(frozen=True)
class _Place:
    """How one leaf of the state is cut."""

    spec: P
    leading: int  # axes in front of it over which devices have different values


class Layout(NamedTuple):
    """The params that are cut over the same axes, and the state of their link."""

    cut: tuple[str, ...]
    members: tuple[int, ...]  # their places among the leaves of params
    places: Tree  # a `_Place` for each leaf of the state

    @property
    def specs(self) -> Tree:
        """How the state is sharded."""
        return jax.tree.map(lambda place: place.spec, self.places)

    def part(self, tree: Tree) -> Tree:
        """The tree with None for all other params."""
        leaves, structure = jax.tree.flatten(tree)
        kept = [x if i in self.members else None for i, x in enumerate(leaves)]
        return jax.tree.unflatten(structure, kept)

    def on_device(self, stored: State) -> State:
        """A device's state, from its shard of the global arrays."""
        return jax.tree.map(
            lambda place, x: x.reshape(x.shape[place.leading :]), self.places, stored
        )

    def stored(self, state: State) -> State:
        """A device's shard of the global arrays, from its state."""
        return jax.tree.map(
            lambda place, x: x.reshape((1,) * place.leading + x.shape),
            self.places,
            state,
        )


def layouts(
    init: Callable[[Tree], State],
    params: Tree,
    specs: tuple[P, ...],
    mesh: Mesh,
    data: tuple[str, ...],
) -> list[Layout]:
    """A layout for each set of axes over which params are cut.

    Args:
      init: from a device's params to its state.
      params: global arrays, or tracers of them.
      specs: how each param is cut.
      mesh: of the params.
      data: the axes of the workers.
    """
    shards = _shards(params, specs, mesh)
    cuts = [axes_of(spec, mesh) for spec in specs]
    result = []
    for cut in dict.fromkeys(cuts):
        members = tuple(i for i, other in enumerate(cuts) if other == cut)
        layout = Layout(cut, members, places=())
        part = layout.part(shards)
        state = jax.eval_shape(init, part)
        cuts_of_part = jax.tree.unflatten(
            jax.tree.structure(part), [specs[i] for i in members]
        )
        result.append(
            layout._replace(places=_places(state, part, cuts_of_part, cut, data))
        )
    return result


def with_shared_clocks(places: Tree) -> Tree:
    """Places of which clocks have no axis of workers, for state that has no marks."""

    def shared(node: Any) -> Any:
        return jax.tree.map(lambda _: _Place(P(), 0), node) if is_clock(node) else node

    return jax.tree.map(shared, places, is_leaf=is_clock)


def first_states(
    init: Callable[[Tree], State],
    plan: list[Layout],
    params: Tree,
    specs: Tree,
    mesh: Mesh,
) -> tuple[State, ...]:
    """The state of each layout as global arrays, made on the devices that hold it.

    Args:
      init: from a device's params to its state.
      plan: from `layouts`.
      params: global arrays.
      specs: how params are cut.
      mesh: of the params.
    """

    def on_device(params: Tree) -> tuple[State, ...]:
        return tuple(layout.stored(init(layout.part(params))) for layout in plan)

    of_states = tuple(layout.specs for layout in plan)
    return jax.jit(on_devices(on_device, mesh, (specs,), of_states))(params)


def in_parts(
    plan: list[Layout],
    links: tuple[State, ...],
    seed: int,
    structure: Any,
    update: Callable[[Layout, State, Array], tuple[Tree, State]],
) -> tuple[Tree, tuple[State, ...]]:
    """Run an update for each layout, on a device; returns the whole tree and the state.

    Args:
      plan: from `layouts`.
      links: a device's shards of the state of each.
      seed: of all keys.
      structure: of the whole tree.
      update: (layout, state, key) -> (its part of the tree, state).
    """
    leaves: dict[int, Any] = {}
    after = []
    for layout, stored in zip(plan, links, strict=True):
        key = jax.random.key(seed)
        if layout.cut:  # shards of a tensor draw different random numbers
            key = jax.random.fold_in(key, jax.lax.axis_index(layout.cut))
        part, state = update(layout, layout.on_device(stored), key)
        leaves |= zip(layout.members, jax.tree.leaves(part), strict=True)
        after.append(layout.stored(state))
    whole = [leaves[place] for place in range(len(leaves))]
    return jax.tree.unflatten(structure, whole), tuple(after)


def _places(
    state: State, part: Tree, specs: Tree, cut: tuple[str, ...], data: tuple[str, ...]
) -> Tree:
    """A `_Place` for each leaf of a device's state.

    A part with the structure and shapes of the params, or of some of them, such as a
    residual, is cut like them. Clocks are the same on all devices. Any other leaf
    differs between devices that hold different shards. State that is marked, clocks
    included, has an axis of workers in front.
    """
    tensors, structure = jax.tree.flatten(part, is_leaf=_is_none)

    def like_params(node: Any) -> bool:
        """Whether it has the shapes of the params, or of some of them."""
        leaves, found = jax.tree.flatten(node, is_leaf=_is_none)
        if found != structure or not jax.tree.leaves(node):
            return False
        pairs = zip(leaves, tensors, strict=True)
        return all(
            x is None or (y is not None and x.shape == y.shape) for x, y in pairs
        )

    def is_whole(node: Any) -> bool:
        return is_per_worker(node) or is_clock(node) or like_params(node)

    def placed(node: Any, front: tuple[Any, ...]) -> Any:
        if is_per_worker(node):
            return PerWorker(all_placed(node.value, (entry(data),)))
        if is_clock(node):
            return jax.tree.map(lambda _: _Place(P(*front), len(front)), node)
        if like_params(node):
            return jax.tree.map(
                lambda x, s: None if x is None else _Place(P(*front, *s), len(front)),
                node,
                specs,
                is_leaf=_is_none,
            )
        front = (*front, entry(cut)) if cut else front
        return _Place(P(*front), len(front))

    def all_placed(tree: Tree, front: tuple[Any, ...]) -> Tree:
        return jax.tree.map(lambda node: placed(node, front), tree, is_leaf=is_whole)

    return all_placed(state, ())


def _is_none(node: Any) -> bool:
    return node is None


def _shards(params: Tree, specs: tuple[P, ...], mesh: Mesh) -> Tree:
    """Shapes and dtypes of the shards that one device holds."""
    leaves, structure = jax.tree.flatten(params)
    if len(leaves) != len(specs):
        raise ValueError(
            f"there are {len(leaves)} tensors, and comm was made for {len(specs)}: "
            "call init with the params that gradients are taken of"
        )
    shapes = [
        NamedSharding(mesh, spec).shard_shape(leaf.shape)
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
    dtypes = [leaf.dtype for leaf in leaves]
    return jax.tree.unflatten(structure, map(jax.ShapeDtypeStruct, shapes, dtypes))
