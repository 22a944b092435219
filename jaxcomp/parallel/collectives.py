"""Collectives over an axis, its parts or workers that share devices; under vmap too."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.errors import UserError
from jaxcomp.core.trees import cast_like, joint_dtype, widen
from jaxcomp.core.types import Array, Axis, Tree
from jaxcomp.parallel.checks import axis_index, axis_size, is_typed


class Lanes(NamedTuple):
    """The axis of workers of whom k share a device; d k + l is lane l of device d.

    It is a tuple of two mapped axes, as `jax.lax.psum` and `axis_index` take it. The
    functions of this module take it too, and those of jax for messages of
    other kinds do not.
    """

    devices: Axis
    lanes: str


class AxisPart(NamedTuple):
    """Groups of workers; a collective runs in each of them by itself."""

    axis: Axis
    per_host: int  # neighbouring workers that share a host
    inside: bool  # True: groups of one host; False: one place in every host

    def groups(self) -> list[list[int]]:
        """The workers of each group.

        Example:
          >>> step = lambda x: np.array(AxisPart("a", 2, inside=False).groups())
          >>> jax.vmap(step, axis_name="a", out_axes=None)(jnp.zeros(6)).tolist()
          [[0, 2, 4], [1, 3, 5]]
        """
        workers = size(self.axis)
        if workers % self.per_host:
            raise ValueError(
                f"hierarchical: {workers} workers are not a multiple of "
                f"per_host={self.per_host}"
            )
        table = np.arange(workers).reshape(-1, self.per_host)
        return (table if self.inside else table.T).tolist()


class Nodes(NamedTuple):
    """Groups of workers that hold the same, to the bit: each group is one member.

    A collective is between the groups. A permutation is divided among the workers of a
    group, so that its message leaves the group once.
    """

    axis: Axis
    devices: int  # neighbouring workers that are one node

    @property
    def inside(self) -> AxisPart:
        """The workers of a node."""
        return AxisPart(self.axis, self.devices, inside=True)

    @property
    def between(self) -> AxisPart:
        """Workers that hold the same place in their nodes."""
        return AxisPart(self.axis, self.devices, inside=False)


def entry(axes: tuple[str, ...]) -> Any:
    """Axes as a `PartitionSpec` and collectives take them: one name, or a tuple."""
    return axes[0] if len(axes) == 1 else axes


def whole(axis: Axis) -> Axis:
    """The mapped axis, of a part of it or of nodes; what `jax.lax` takes."""
    return axis.axis if isinstance(axis, AxisPart | Nodes) else axis


def size(axis: Axis) -> int:
    """The number of workers on an axis, or in a group; known while tracing."""
    if isinstance(axis, Nodes):
        axis = axis.between
    if isinstance(axis, AxisPart):
        return len(axis.groups()[0])
    return axis_size(axis)


def index(axis: Axis) -> Array:
    """This worker's place on an axis, or in its group."""
    if isinstance(axis, Nodes):
        axis = axis.between
    if not isinstance(axis, AxisPart):
        return axis_index(axis)
    place = axis_index(axis.axis)
    return place % axis.per_host if axis.inside else place // axis.per_host


def total(tree: Tree, axis: Axis) -> Tree:
    """The sum over the workers, by one all-reduce."""

    def simulated(rows: Array, place: Array) -> Array:
        return jnp.sum(rows, axis=0, dtype=rows.dtype)

    axis = _by_device(axis)
    if isinstance(axis, Lanes):
        return total(total(tree, axis.lanes), axis.devices)
    return _over(jax.lax.psum, simulated, tree, axis)


def mean(tree: Tree, axis: Axis) -> Tree:
    """The mean over the workers, by one all-reduce in at least float32.

    The sum may be too large for float16 even where the mean is not.
    """
    sums = total(widen(tree), axis)
    return cast_like(jax.tree.map(lambda x: x / size(axis), sums), tree)


def mean_of_all(arrays: list[Array], axis: Axis) -> list[Array]:
    """The mean of each array, by one all-reduce in the widest of their dtypes."""
    if not arrays:
        return []
    dtype = joint_dtype([a.dtype for a in arrays])
    flat = jnp.concatenate([a.reshape(-1).astype(dtype) for a in arrays])
    borders = np.cumsum([a.size for a in arrays])[:-1]
    parts = jnp.split(mean(flat, axis), borders)
    pairs = zip(parts, arrays, strict=True)
    return [part.reshape(a.shape).astype(a.dtype) for part, a in pairs]


def gather(x: Array, axis: Axis, alike: bool = False) -> Array:
    """Every worker's x, stacked in the order of the workers.

    Args:
      x: of this worker.
      axis: over whom.
      alike: whether all groups of a part gather the same arrays.
    """

    def gathered(x: Array, name: Any, **groups: Any) -> Array:
        # Other mappers do not know the type "invarying".
        to = "invarying" if is_typed(name) else "varying"
        # A vector would be gathered side by side with the others. TPUs cannot place it
        # within a tile, and send an all-reduce of all vectors; they gather rows.
        row = jax.lax.optimization_barrier(x[None])
        return jnp.squeeze(jax.lax.all_gather(row, name, to=to, **groups), 1)

    axis = _by_device(axis)
    if isinstance(axis, Lanes):
        rows = gather(gather(x, axis.lanes), axis.devices, alike)
        return rows.reshape(-1, *x.shape)
    return _over(gathered, lambda rows, place: rows, x, axis, alike)


def swap(rows: Array, axis: Axis) -> Array:
    """Row j of worker i becomes row i of worker j, by one all-to-all."""

    def exchanged(x: Array, name: str, **groups: Any) -> Array:
        return jax.lax.all_to_all(x, name, 0, 0, **groups)

    axis = _by_device(axis)
    if isinstance(axis, Lanes):
        # Lanes of one device first: then each device has all that it sends to another.
        lanes = size(axis.lanes)
        blocks = rows.reshape(-1, lanes, *rows.shape[1:])
        blocks = jax.lax.all_to_all(blocks, axis.lanes, 1, 1)
        return swap(blocks, axis.devices).reshape(rows.shape)
    return _over(exchanged, lambda rows, i: jnp.take(rows, i, axis=1), rows, axis)


def permute(x: Array, pairs: Sequence[tuple[int, int]], axis: Axis) -> Array:
    """Worker d receives x of worker s for each pair (s, d); the others receive zeros.

    Args:
      x: of this worker.
      pairs: each worker at most once as source, and at most once as destination.
      axis: over whom.
    """
    if isinstance(axis, Nodes):
        return _permute_in_parts(x, pairs, axis)
    if isinstance(axis, Lanes):
        return permute_each(x, [pairs], axis)[0]
    permuted = functools.partial(jax.lax.ppermute, axis_name=axis, perm=pairs)
    if len(pairs) == size(axis):
        return permuted(x)

    def simulated(rows: Array) -> Array:
        sources, destinations = np.array(pairs).reshape(-1, 2).T
        return jnp.zeros_like(rows).at[destinations].set(rows[sources])

    return written_out(permuted, simulated, x, axis)


def permute_each(
    x: Array, slots: Sequence[Sequence[tuple[int, int]]], axis: Axis
) -> list[Array]:
    """`permute` by the pairs of each slot, of the same x.

    Workers of a device that await the same x of another device get it by one message.

    Args:
      x: of this worker.
      slots: pairs, as of `permute`.
      axis: over whom.
    """
    if not isinstance(axis, Lanes):
        return [permute(x, pairs, axis) for pairs in slots]

    def alone(x: Array) -> Array:
        return jnp.stack([jax.lax.ppermute(x, axis, pairs) for pairs in slots])

    of_device = functools.partial(permute_rows, slots=slots, devices=axis.devices)
    return list(written_out(alone, of_device, x, axis.lanes))


def _permute_in_parts(
    x: Array, pairs: Sequence[tuple[int, int]], nodes: Nodes
) -> Array:
    """`permute` between nodes: each worker sends a part, and gathers the others'."""
    count = nodes.devices
    rows = jnp.pad(x.reshape(-1), (0, -x.size % count)).reshape(count, -1)
    links = [(s * count + i, d * count + i) for s, d in pairs for i in range(count)]
    arrived = permute(rows[index(nodes.inside)], links, nodes.axis)
    return gather(arrived, nodes.inside).reshape(-1)[: x.size].reshape(x.shape)


def _by_device(axis: Axis) -> Axis:
    """An axis, or parts of it, without nodes, and parts by parts of the devices."""
    if isinstance(axis, Nodes):
        axis = axis.between
    if not isinstance(axis, AxisPart) or not isinstance(axis.axis, Lanes):
        return axis
    devices, lanes = axis.axis
    own = size(lanes)
    if axis.per_host % own:
        raise UserError(
            f"hierarchical: a host of {axis.per_host} workers has no whole number of "
            f"devices, each of which has {own}: give per_host a multiple of {own}"
        )
    part = AxisPart(devices, axis.per_host // own, axis.inside)
    return Lanes(part, lanes) if axis.inside else part


def _over(
    collective: Callable[..., Tree],
    simulated: Callable[[Array, Array], Array],
    tree: Tree,
    axis: Axis,
    alike: bool = False,
) -> Tree:
    """A collective over an axis, or over each group of a part.

    vmap has no collectives of groups, so `simulated` computes their results for it.

    Args:
      collective: of jax.lax.
      simulated: (arrays of the members of a group, place in it) -> result of a member.
      tree: of this worker.
      axis: over whom.
      alike: whether all groups have the same result.
    """
    size(axis)
    if not isinstance(axis, AxisPart):
        return collective(tree, axis)
    if is_typed(axis.axis):
        raise ValueError(
            f"jax.shard_map with check_vma=True has no collectives of parts of an axis "
            f"such as {axis.axis!r}. Make a mesh of two axes, hosts and the workers of "
            "one, and build hierarchical with both: axis=('hosts', 'local'); or say "
            "check_vma=False"
        )
    groups = axis.groups()

    def grouped(tree: Tree) -> Tree:
        return collective(tree, axis.axis, axis_index_groups=groups)

    def of_all(rows: Array) -> Array:
        members = jnp.asarray(groups)
        if alike:
            return simulated(rows[members[0]], jnp.int32(0))
        # The group of each worker, and its place in the group.
        group_of, place_of = np.zeros((2, len(rows)), np.int32)
        for i, group in enumerate(groups):
            group_of[group], place_of[group] = i, range(len(group))
        return jax.vmap(lambda g, p: simulated(rows[members[g]], p))(group_of, place_of)

    return written_out(grouped, of_all, tree, axis.axis, alike)


def stacked(tree: Tree, differs: Tree, count: int) -> Tree:
    """The arrays of all members of a mapped axis.

    Args:
      tree: as a rule is given it.
      differs: for each leaf, whether it already has a row for each member.
      count: number of members.
    """

    def rows(x: Array, has_rows: bool) -> Array:
        return x if has_rows else jnp.broadcast_to(x, (count, *x.shape))

    return jax.tree.map(rows, tree, differs)


def moved(tree: Tree, differs: Tree, source: int, destination: int) -> Tree:
    """The tree with one axis moved, in the leaves that have it.

    Args:
      tree: arrays.
      differs: for each leaf, whether it has the axis.
      source: place of the axis.
      destination: its new place.
    """

    def move(x: Array, has_axis: bool) -> Array:
        return jnp.moveaxis(x, source, destination) if has_axis else x

    return jax.tree.map(move, tree, differs)


def written_out(
    collective: Callable[[Tree], Tree],
    simulated: Callable[[Array], Array],
    tree: Tree,
    axis: Axis,
    alike: bool = False,
) -> Tree:
    """A collective that vmap does not have, with a function that computes it for vmap.

    Other axes may be mapped inside or around that of the workers, such as one of the
    members of an ensemble. Along these the collective runs for each member.

    Args:
      collective: treats each index of its arrays' last dimensions by itself.
      simulated: arrays of all workers, stacked, -> results of all workers, stacked.
      tree: of this worker.
      axis: name of the axis.
      alike: whether all workers have the same result; it is then returned once.
    """

    @jax.custom_batching.custom_vmap
    def run(tree: Tree, place: Array) -> Tree:
        return collective(tree)

    # vmap calls the rule for any axis, without its name. The place tells which axis it
    # is: it differs along that of the workers, and along no other.
    @run.def_vmap
    def _(size: int, batched: Any, tree: Tree, place: Array) -> tuple[Tree, Any]:
        in_tree, is_workers = batched
        if is_workers:
            results = jax.tree.map(simulated, stacked(tree, in_tree, size))
            return results, jax.tree.map(lambda x: not alike, tree)
        result = run(moved(tree, in_tree, 0, -1), place)
        return moved(result, in_tree, -1, 0), in_tree

    # All collectives here are linear. JAX's own rule for tangents would map them over
    # the wrong axis.
    linear = jax.custom_jvp(run)

    @linear.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Tree, Tree]:
        (tree, place), (change, _) = primals, tangents
        return run(tree, place), run(change, place)

    return linear(tree, axis_index(axis))


def permute_rows(
    rows: Array, slots: Sequence[Sequence[tuple[int, int]]], devices: Axis
) -> Array:
    """`collectives.permute_each` for all workers of a device at once.

    What crosses devices takes as few permutations of one row as possible: a row that
    several workers of another device await goes there once.

    Args:
      rows: of the workers of this device, [lanes, ...].
      slots: (source, destination) of workers, each at most once on either side.
      devices: the axis of the devices.

    Returns:
      What arrives in each slot, [lanes, slots, ...].
    """
    lanes, count = len(rows), axis_size(devices)
    place = jax.lax.axis_index(devices)
    # Where each slot of a worker is among the own rows and those that arrive.
    origin = np.full((count, lanes, len(slots)), -1)
    awaited: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
    for slot, pairs in enumerate(slots):
        for source, destination in pairs:
            (here, row), (there, to) = divmod(source, lanes), divmod(destination, lanes)
            if here == there:
                origin[here, to, slot] = row
            else:
                of_link = awaited.setdefault((here, there), {})
                of_link.setdefault(row, []).append((to, slot))
    edges = [edge for edge, moves in awaited.items() for _ in moves]
    # Whole shifts of the devices first, as those of a ring are.
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % count, edge[0]))
    pool = [rows]
    for number, turn in enumerate(coloured(edges, count).T if edges else (), lanes):
        sent = np.zeros(count, int)
        links = [(here, int(there)) for here, there in enumerate(turn) if there >= 0]
        for here, there in links:
            sent[here], moves = awaited[here, there].popitem()
            for move in moves:
                origin[there, *move] = number
        row = rows[jnp.asarray(sent)[place]]
        pool.append(jax.lax.ppermute(row, devices, links)[None])
    every = jnp.concatenate(pool)
    found = np.where(origin < 0, len(every), origin)
    return jnp.take(every, jnp.asarray(found)[place], 0, mode="fill", fill_value=0)


def coloured(edges: Sequence[tuple[int, int]], size: int) -> np.ndarray:
    """To whom each of `size` nodes sends in each turn, [size, turns]; -1 is nobody.

    The number of turns is the largest number of messages that a node sends or receives.
    This follows from Koenig's theorem: the edges of a bipartite graph, here of senders
    and receivers, can be coloured with as many colours as its largest degree.

    Args:
      edges: (source, destination) each; the same one may be there several times.
      size: the number of nodes.

    Example:
      >>> coloured([(0, 1), (0, 1), (1, 0)], 2).tolist()
      [[1, 1], [0, -1]]

    References:
      König, Über Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre,
      Mathematische Annalen 77, 1916.
    """
    ends = np.array(edges, int).reshape(-1, 2).T
    colours = max(int(np.bincount(end, minlength=1).max()) for end in ends)
    # To whom and from whom a node's message of each colour is.
    sends = np.full((size, colours), -1)
    hears = np.full((size, colours), -1)
    for source, destination in edges:
        colour = _free_colour(sends, hears, source, destination)
        sends[source, colour] = destination
        hears[destination, colour] = source
    return sends


def _free_colour(
    sends: np.ndarray, hears: np.ndarray, source: int, destination: int
) -> int:
    """A colour that neither end of an edge has yet.

    If there is none, two colours are swapped along a chain of edges to make one.
    """
    unsent, unheard = sends[source] < 0, hears[destination] < 0
    common = np.flatnonzero(unsent & unheard)
    if len(common):
        return int(common[0])
    wanted, other = int(np.argmax(unsent)), int(np.argmax(unheard))
    # The chain of colours wanted, other, wanted, ... that begins at the destination. It
    # reaches senders by edges of `wanted` only. The source has none, so the chain never
    # reaches it.
    chain = []
    hearer = destination
    while (sender := int(hears[hearer, wanted])) >= 0:
        chain.append((sender, hearer, wanted))
        if (hearer := int(sends[sender, other])) < 0:
            break
        chain.append((sender, hearer, other))
    for sender, hearer, colour in chain:
        sends[sender, colour] = hears[hearer, colour] = -1
    for sender, hearer, colour in chain:
        swapped = other if colour == wanted else wanted
        sends[sender, swapped], hears[hearer, swapped] = hearer, sender
    return wanted
