"""How arrays of a model and of its workers are laid out on a mesh."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import tree_flatten_with_path

from jaxcomp.core import types
from jaxcomp.core.specs import suggest
from jaxcomp.core.trees import label_of, name_of
from jaxcomp.core.types import Exchange, Mixer, State, Tree, is_clock, is_per_worker
from jaxcomp.parallel.collectives import entry
from jaxcomp.parallel.placing import is_none

REMEMBERED = (
    "A worker remembers what it has not sent of the whole tensor, and so would hold "
    "what cutting it saves"
)


class Grid(NamedTuple):
    """A mesh, and the axes of it over which a batch is divided among the workers."""

    mesh: Mesh
    data: tuple[str, ...]

    @property
    def over(self) -> Any:
        """The axes of the data, as specs and collectives take them."""
        return entry(self.data)

    @property
    def workers(self) -> int:
        """The number of workers over which a batch is divided."""
        return math.prod(self.mesh.shape[name] for name in self.data)

    def put(self, tree: Tree, specs: Tree) -> Tree:
        """The arrays on the devices of the mesh, cut as the specs say."""
        cuts = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)
        return jax.device_put(tree, cuts)

    def manual(
        self,
        function: Callable[..., Any],
        in_specs: Any,
        out_specs: Any,
        *,
        only_data: bool = False,
    ) -> Callable[..., Any]:
        """A function of what each device holds, as a function of global arrays.

        Types are not checked, because they know nothing of parts of an axis
        (`collectives.AxisPart`), and `jax.grad` would sum gradients over the workers.

        Args:
          function: runs on each device.
          in_specs: how each argument is cut.
          out_specs: how the results are.
          only_data: leave the other axes of the mesh to the compiler.
        """
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(self.data) if only_data else set(),
            check_vma=False,
        )


def make_grid(mesh: Mesh, axis: str | Sequence[str], method: Exchange | Mixer) -> Grid:
    """The grid of a mesh; refuses axes that it does not have, or the method not name.

    Args:
      mesh: of the arrays.
      axis: over which a batch is divided, as the caller names it.
      method: what is to go over this axis.
    """
    data = (axis,) if isinstance(axis, str) else tuple(axis)
    kind, does = "mixer", "the mixer sends"
    if isinstance(method, Exchange):
        kind, does = "exchange", "the exchange averages"
    for name in data:
        if name not in mesh.axis_names:
            hint = suggest(name, mesh.axis_names)
            raise ValueError(f"the mesh has no axis {name!r}. {hint}")
    if method.axis not in (data, entry(data)):
        raise ValueError(
            f"{does} over {method.axis!r}, and batches are divided over "
            f"{entry(data)!r}: build it by make_{kind}(..., axis={entry(data)!r}), or "
            "say axis= where you name the mesh"
        )
    return Grid(mesh, data)


def spec_of_param(path: Any, leaf: Any, grid: Grid, why: str = REMEMBERED) -> P:
    """How a param is cut; refuses one that is cut over the axes of the data.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as replicated.
      grid: of the params.
      why: the reason to refuse it; a part of the message.
    """
    spec = spec_of_leaf(path, leaf, grid.mesh)
    over = tuple(name for name in axes_of(spec, grid.mesh) if name in grid.data)
    if over:
        raise ValueError(
            f"{label_of(path)} is cut over {entry(over)!r}, an axis of the data, by "
            f"{spec}. {why}. Replicate it over the axes of the data; cut it over others"
        )
    return spec


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


def in_front(models: Tree, specs: Sequence[P], grid: Grid) -> Tree:
    """How models with a leading worker axis are cut, from how one model is."""
    of_models = [P(grid.over, *spec) for spec in specs]
    return jax.tree.unflatten(jax.tree.structure(models), of_models)


def kinds_of(
    in_axes: Any, batch: tuple[Any, ...], workers: int, has_own: bool = False
) -> list[Any]:
    """For each leaf of a batch: 0 if it is divided, None if all workers get all of it.

    Args:
      in_axes: a prefix tree of the batch that says so.
      batch: the arguments.
      workers: their number.
      has_own: whether in_axes may hold "own", for arrays with a leading worker axis.
    """
    kinds = []

    def add(axis: Any, argument: Any) -> None:
        if axis not in (0, None) and not (has_own and axis == "own"):
            valid = "0, 'own' and None" if has_own else "0 and None"
            raise ValueError(f"in_axes holds {valid}, not {axis!r}")
        kinds.extend([axis] * len(jax.tree.leaves(argument)))

    # `add` fills a list, because some pytree nodes refuse leaves that are no arrays.
    jax.tree.map(add, in_axes, batch, is_leaf=lambda axis: axis is None)
    pairs, _ = tree_flatten_with_path(batch)
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
    function: Callable[..., Any], args: tuple[Any, ...], kinds: list[Any], grid: Grid
) -> Any:
    """Run a function for each worker, manual over the axes of the data alone.

    Args:
      function: of one worker; it may name the axes of the data.
      args: leaves that are no arrays, such as activation functions, are passed as they
        are.
      kinds: of their leaves, from `kinds_of`.
      grid: of the arrays.

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

    cuts = [P() if kinds[i] is None else P(grid.over) for i in arrays]
    mapped = grid.manual(of_worker, (cuts,), P(grid.over), only_data=True)
    return mapped([leaves[i] for i in arrays])


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How one leaf of the state is cut."""

    spec: P
    leading: int  # axes in front of it over which devices have different values


class Layout(NamedTuple):
    """The params that are cut over the same axes, and the state of their link."""

    cut: tuple[str, ...]
    members: tuple[int, ...]  # their places among the leaves of params
    cuts: Tree  # a `_Cut` for each leaf of the state

    @property
    def specs(self) -> Tree:
        """How the state is sharded."""
        return jax.tree.map(lambda cut: cut.spec, self.cuts)

    def part(self, tree: Tree) -> Tree:
        """The tree with None for all other params."""
        leaves, structure = jax.tree.flatten(tree)
        kept = [x if i in self.members else None for i, x in enumerate(leaves)]
        return jax.tree.unflatten(structure, kept)

    def on_device(self, stored: State) -> State:
        """A device's state, from its shard of the global arrays."""
        return jax.tree.map(
            lambda cut, x: x.reshape(x.shape[cut.leading :]), self.cuts, stored
        )

    def stored(self, state: State) -> State:
        """A device's shard of the global arrays, from its state."""
        return jax.tree.map(
            lambda cut, x: x.reshape((1,) * cut.leading + x.shape),
            self.cuts,
            state,
        )


def layouts(
    init: Callable[[Tree], State], params: Tree, specs: tuple[P, ...], grid: Grid
) -> list[Layout]:
    """A layout for each set of axes over which params are cut.

    Args:
      init: from a device's params to its state.
      params: global arrays, or tracers of them.
      specs: how each param is cut.
      grid: of the params.
    """
    shards = _shards(params, specs, grid.mesh)
    cuts = [axes_of(spec, grid.mesh) for spec in specs]
    result = []
    for cut in dict.fromkeys(cuts):
        members = tuple(i for i, other in enumerate(cuts) if other == cut)
        layout = Layout(cut, members, cuts=())
        part = layout.part(shards)
        own = [specs[i] for i in members]
        cut_of = jax.tree.unflatten(jax.tree.structure(part), own)
        found = _cuts_of(jax.eval_shape(init, part), part, cut_of, cut, grid.over)
        result.append(layout._replace(cuts=found))
    return result


def with_shared_clocks(cuts: Tree) -> Tree:
    """Cuts of which clocks have no axis of workers, for state that has no marks."""

    def shared(node: Any) -> Any:
        return jax.tree.map(lambda _: _Cut(P(), 0), node) if is_clock(node) else node

    return jax.tree.map(shared, cuts, is_leaf=is_clock)


def first_states(
    init: Callable[[Tree], State],
    plan: list[Layout],
    params: Tree,
    specs: Tree,
    grid: Grid,
) -> tuple[State, ...]:
    """The state of each layout as global arrays, made on the devices that hold it.

    Args:
      init: from a device's params to its state.
      plan: from `layouts`.
      params: global arrays.
      specs: how params are cut.
      grid: of the params.
    """

    def on_device(params: Tree) -> tuple[State, ...]:
        return tuple(layout.stored(init(layout.part(params))) for layout in plan)

    of_states = tuple(layout.specs for layout in plan)
    made = jax.jit(grid.manual(on_device, (specs,), of_states))
    return made(grid.put(params, specs))


def in_parts(
    plan: list[Layout],
    links: tuple[State, ...],
    seed: int,
    structure: Any,
    update: Callable[[Layout, State, types.Array], tuple[Tree, State]],
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


def _cuts_of(
    state: State, part: Tree, specs: Tree, cut: tuple[str, ...], over: Any
) -> Tree:
    """A `_Cut` for each leaf of a device's state.

    A part with the structure and shapes of the params, or of some of them, such as a
    residual, is cut like them. Clocks are the same on all devices. Any other leaf
    differs between devices that hold different shards. State that is marked, clocks
    included, has an axis of workers in front.
    """
    tensors, structure = jax.tree.flatten(part, is_leaf=is_none)

    def like_params(node: Any) -> bool:
        """Whether it has the shapes of the params, or of some of them."""
        leaves, found = jax.tree.flatten(node, is_leaf=is_none)
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
            return types.PerWorker(all_placed(node.value, (over,)))
        if is_clock(node):
            return jax.tree.map(lambda _: _Cut(P(*front), len(front)), node)
        if like_params(node):
            return jax.tree.map(
                lambda x, s: None if x is None else _Cut(P(*front, *s), len(front)),
                node,
                specs,
                is_leaf=is_none,
            )
        front = (*front, entry(cut)) if cut else front
        return _Cut(P(*front), len(front))

    def all_placed(tree: Tree, front: tuple[Any, ...]) -> Tree:
        return jax.tree.map(lambda node: placed(node, front), tree, is_leaf=is_whole)

    return all_placed(state, ())


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
