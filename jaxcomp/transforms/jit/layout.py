"""How arrays of a model and of its workers are laid out on a mesh."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.core.specs import suggest
from jaxcomp.core.trees import label_of, name_of
from jaxcomp.core.types import (
    Array,
    Axis,
    PerWorker,
    State,
    Tree,
    is_clock,
    is_per_worker,
)
from jaxcomp.parallel.collectives import entry

REMEMBERED = (
    "A worker remembers what it has not sent of the whole tensor, and so would hold "
    "what cutting it saves"
)
OWN = "Each worker trains a model of its own, and has to hold all of it"


def spec_of_param(
    path: Any, leaf: Any, mesh: Mesh, data: tuple[str, ...], why: str = REMEMBERED
) -> P:
    """How a param is cut; refuses one that is cut over the axes of the data.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as replicated.
      mesh: of the params.
      data: the axes of the workers.
      why: the reason to refuse it; a part of the message.
    """
    spec = spec_of_leaf(path, leaf, mesh)
    over = tuple(name for name in axes_of(spec, mesh) if name in data)
    if over:
        raise ValueError(
            f"{label_of(path)} is cut over {entry(over)!r}, an axis of the data, by "
            f"{spec}. {why}. Replicate it over the axes of the data; cut it over others"
        )
    return spec


def spec_of_model(path: Any, leaf: Any, mesh: Mesh, data: tuple[str, ...]) -> P:
    """How each worker's tensor is cut, read from an array with a leading worker axis.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as not cut.
      mesh: of the models.
      data: the axes of the workers.
    """
    first, *rest = spec_of_leaf(path, leaf, mesh) or P(None)
    wrong = [name for name in axes_of(P(first), mesh) if name not in data]
    wrong += [name for name in axes_of(P(*rest), mesh) if name in data]
    if wrong:
        raise ValueError(
            f"{label_of(path)} is cut by {P(first, *rest)}. The first axis is that of "
            f"the workers, and cut over {entry(data)!r} or not at all. {OWN}: cut it "
            "over other axes"
        )
    return P(*rest)


def spec_of_leaf(path: Any, leaf: Any, mesh: Mesh) -> P:
    """How an array is cut over a mesh, read from its sharding."""
    if isinstance(leaf, Tracer):
        raise TypeError(
            "arrays are asked how they are cut, which those under jit do not tell: "
            "call it outside"
        )
    if not hasattr(leaf, "shape"):
        raise TypeError(
            f"{label_of(path)} is a {type(leaf).__name__}, and no array: leave it out, "
            "as by eqx.filter(model, eqx.is_inexact_array)"
        )
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or sharding.is_fully_replicated:  # as on a single device
        return P()
    if not isinstance(sharding, NamedSharding) or sharding.mesh.shape != mesh.shape:
        raise ValueError(f"{label_of(path)} is not on {mesh}, but on {sharding}")
    return sharding.spec


def put(tree: Tree, specs: Tree, mesh: Mesh) -> Tree:
    """The arrays on the devices of a mesh, cut as the specs say."""
    return jax.device_put(tree, jax.tree.map(lambda s: NamedSharding(mesh, s), specs))


def on_devices(
    function: Callable[..., Any], mesh: Mesh, in_specs: tuple[Tree, ...], out_specs: Any
) -> Callable[..., Any]:
    """A function of what each device holds, as a function of global arrays.

    It is manual over all axes of the mesh. Types are not checked, because they know
    nothing of parts of an axis (`collectives.Part`).

    Args:
      function: runs on each device.
      mesh: of the devices.
      in_specs: how each argument is cut.
      out_specs: how the results are.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def axes_of(spec: P, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a spec names, in the order of the mesh."""
    entries = [(e,) if isinstance(e, str) else e or () for e in spec]
    named = {name for names in entries for name in names}
    return tuple(name for name in mesh.axis_names if name in named)


def without_axis(tree: Tree) -> Tree:
    """A device's slice of each array, without the axis of workers in front."""
    return jax.tree.map(lambda x: x[0], tree)


def with_axis(tree: Tree) -> Tree:
    """The inverse of `without_axis`."""
    return jax.tree.map(lambda x: x[None], tree)


def in_front(models: Tree, specs: tuple[P, ...], data: tuple[str, ...]) -> Tree:
    """How models with a leading worker axis are cut, from how one model is."""
    of_models = [P(entry(data), *spec) for spec in specs]
    return jax.tree.unflatten(jax.tree.structure(models), of_models)


def spread(params: Tree, mesh: Mesh, data: tuple[str, ...]) -> Tree:
    """A copy of params for each worker, made on that worker's devices.

    Args:
      params: cut over any axes but those of the data.
      mesh: on which models are to live.
      data: the axes of the workers.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(params)
    specs = [spec_of_param(*pair, mesh, data, why=OWN) for pair in pairs]
    of_params = jax.tree.unflatten(structure, specs)
    of_models = in_front(params, tuple(specs), data)
    copied = on_devices(with_axis, mesh, (of_params,), of_models)
    return jax.jit(copied)(put(params, of_params, mesh))


def of_one(models: Tree, mesh: Mesh, data: tuple[str, ...]) -> Tree:
    """Shapes and dtypes of one worker's model; refuses trees without a worker axis."""
    workers = worker_count(mesh, data)

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        if leaf.shape[:1] != (workers,):
            raise ValueError(
                f"{label_of(path)} has the shape {leaf.shape}, and models have an axis "
                f"of {workers} workers in front: begin with models = dec.spread(params)"
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree_util.tree_map_with_path(spec, models)


def specs_of(models: Tree, mesh: Mesh, data: tuple[str, ...]) -> tuple[P, ...]:
    """How each tensor of a worker's model is cut."""
    of_one(models, mesh, data)
    pairs, _ = jax.tree_util.tree_flatten_with_path(models)
    return tuple(spec_of_model(path, leaf, mesh, data) for path, leaf in pairs)


def worker_count(mesh: Mesh, data: tuple[str, ...]) -> int:
    """The number of workers over which a batch is divided."""
    return math.prod(mesh.shape[name] for name in data)


def check_axes(
    axis: Axis, mesh: Mesh, data: tuple[str, ...], does: str, kind: str
) -> None:
    """Refuse axes that the mesh does not have, or that the method does not name.

    Args:
      axis: of the method.
      mesh: of the arrays.
      data: the axes that the caller names.
      does: what the method does over its axis, for the message.
      kind: "exchange" or "mixer".
    """
    for name in data:
        if name not in mesh.axis_names:
            hint = suggest(name, mesh.axis_names)
            raise ValueError(f"the mesh has no axis {name!r}. {hint}")
    if axis not in (data, entry(data)):
        raise ValueError(
            f"{does} over {axis!r}, and batches are divided over {entry(data)!r}: "
            f"build it by make_{kind}(..., axis={entry(data)!r}), or say axis= where "
            "you name the mesh"
        )


def kinds_of(
    in_axes: Any,
    batch: tuple[Any, ...],
    mesh: Mesh,
    data: tuple[str, ...],
    has_own: bool = False,
) -> list[Any]:
    """For each leaf of a batch: 0 if it is divided, None if all workers get all of it.

    Args:
      in_axes: a prefix tree of the batch that says so.
      batch: the arguments.
      mesh: of the arrays.
      data: the axes of the workers.
      has_own: whether in_axes may hold "own", for arrays with a leading worker axis.
    """
    workers = worker_count(mesh, data)
    kinds = []

    def add(axis: Any, argument: Any) -> None:
        if axis not in (0, None) and not (has_own and axis == "own"):
            valid = "0, 'own' and None" if has_own else "0 and None"
            raise ValueError(f"in_axes holds {valid}, not {axis!r}")
        kinds.extend([axis] * len(jax.tree.leaves(argument)))

    # `add` fills a list, because some pytree nodes refuse leaves that are no arrays.
    jax.tree.map(add, in_axes, batch, is_leaf=lambda axis: axis is None)
    pairs, _ = jax.tree_util.tree_flatten_with_path(batch)
    for (path, x), kind in zip(pairs, kinds, strict=True):
        if kind is None or not _is_array(x):
            continue
        label = f"argument {name_of(path)} of the batch, of shape {x.shape},"
        if kind == "own" and x.shape[:1] != (workers,):
            raise ValueError(
                f"{label} has no axis of {workers} workers in front, as in_axes says "
                "by 'own'"
            )
        if not x.shape or x.shape[0] % workers:
            raise ValueError(
                f"{label} does not divide over {workers} workers along its first axis. "
                "in_axes says None of what all workers get whole, as in "
                "in_axes=(0, None)"
            )
    return kinds


def each_worker(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kinds: list[Any],
    mesh: Mesh,
    data: tuple[str, ...],
) -> Any:
    """Run a function for each worker, manual over the axes of the data alone.

    Args:
      function: of one worker; it may name the axes of the data.
      args: leaves that are no arrays, such as activation functions, are passed as they
        are.
      kinds: of their leaves, from `kinds_of`.
      mesh: of the arrays.
      data: the axes of the workers.

    Returns:
      What the function returns, with an axis of workers in front.
    """
    leaves, structure = jax.tree.flatten(args)
    arrays = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def of_worker(given: list[jax.Array]) -> Any:
        new = list(leaves)
        for place, x in zip(arrays, given, strict=True):
            new[place] = x[0] if kinds[place] == "own" else x
        found = function(*jax.tree.unflatten(structure, new))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], found)

    mapped = jax.shard_map(
        of_worker,
        mesh=mesh,
        in_specs=([P() if kinds[i] is None else P(entry(data)) for i in arrays],),
        out_specs=P(entry(data)),
        axis_names=set(data),
        check_vma=False,  # otherwise `jax.grad` would sum gradients over the workers
    )
    return mapped([leaves[i] for i in arrays])


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


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
