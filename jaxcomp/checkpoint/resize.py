"""A state for another number of workers: what is owed is kept, no sum changes."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.tree_util import tree_flatten_with_path

from jaxcomp.checkpoint import leaves
from jaxcomp.checkpoint.leaves import Stored
from jaxcomp.core import trees, types
from jaxcomp.core.errors import UserError
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.trees import as_keys, is_key, name_of, numbers_of, numbers_spec
from jaxcomp.core.types import Exchange, Mixer, Resize, Tree, is_per_worker, is_report
from jaxcomp.parallel import agreement
from jaxcomp.parallel.placing import with_marks
from jaxcomp.transforms.distributed import DistributedState
from jaxcomp.transforms.jit.data_parallel import Comm


def shares(old: int, new: int) -> list[list[tuple[int, float]]]:
    """For each new worker the old ones that it takes from, and how much from each.

    Example:
      >>> shares(4, 2)
      [[(0, 0.5), (1, 0.5)], [(2, 0.5), (3, 0.5)]]
      >>> shares(2, 3)
      [[(0, 1.0)], [(0, 0.5), (1, 0.5)], [(1, 1.0)]]
    """

    def of(worker: int) -> list[tuple[int, float]]:
        # In units of which an old worker has `new` and a new worker has `old`.
        first, end = worker * old, (worker + 1) * old
        found = []
        for j in range(first // new, -(-end // new)):
            common = min(end, (j + 1) * new) - max(first, j * new)
            found.append((j, common / old))
        return found

    return [of(worker) for worker in range(new)]


def averaged(rows: Any, new: int) -> np.ndarray:
    """The values of the new workers: weighted means of those of the old ones.

    Means are computed in float64, from differences to one of the rows. So equal rows
    give these rows again, to the bit.

    Args:
      rows: floats or complex numbers, with an axis of the old workers in front.
      new: number of workers.

    Example:
      >>> averaged(np.float32([1, 3, 5, 5]), 2), averaged(np.float32([1, 3]), 4)
      (array([2., 5.], dtype=float32), array([1., 1., 3., 3.], dtype=float32))
    """
    rows = np.asarray(rows)
    is_complex = jnp.issubdtype(rows.dtype, jnp.complexfloating)
    wide = np.complex128 if is_complex else np.float64
    result = np.empty((new, *rows.shape[1:]), rows.dtype)
    for i, parts in enumerate(shares(len(rows), new)):
        (first, _), *others = parts
        if not others:
            result[i] = rows[first]
            continue
        base = rows[first].astype(wide)
        total = base.copy()
        for j, weight in others:
            total += weight * (rows[j].astype(wide) - base)
        result[i] = total.astype(rows.dtype)
    return result


def same(rows: Any, new: int) -> np.ndarray | None:
    """The value of all workers, for the new ones; None if it is not one value.

    Example:
      >>> same(np.array([7, 7]), 3), same(np.array([7, 8]), 3)
      (array([7, 7, 7]), None)
    """
    rows = np.asarray(rows)
    if any(row.tobytes() != rows[0].tobytes() for row in rows[1:]):
        return None
    return np.repeat(rows[:1], new, axis=0)


def succeeding_keys(rows: Any, new: int) -> jax.Array:
    """Typed keys of the new workers, different where the old ones were.

    A new worker takes the key of the first worker that it takes from. If several take
    the same key, all but the first of them fold their number in.

    Args:
      rows: typed keys, with an axis of the old workers in front.
      new: number of workers.

    Example:
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> bool(jnp.all(succeeding_keys(keys, 4)[::2] == keys))
      True
    """
    assert is_key(rows)
    if (alike := same(numbers_of(rows), new)) is not None:
        return as_keys(alike, rows)
    taken: dict[int, int] = {}
    keys = []
    for (first, _), *_ in shares(len(rows), new):
        turn = taken.get(first, 0)
        taken[first] = turn + 1
        row = rows[first]
        keys.append(_folded(row, turn) if turn else row)
    return jnp.stack(keys)


def _folded(keys: jax.Array, turn: int) -> jax.Array:
    flat = jax.vmap(lambda key: jax.random.fold_in(key, turn))(keys.reshape(-1))
    return flat.reshape(keys.shape)


class _Inside(NamedTuple):
    """What the nodes around a node say of it."""

    is_marked: bool = False
    in_method: bool = False  # in the state of an exchange or a mixer
    averages: bool = True  # whether marked floats are averaged here


class _Resizing(NamedTuple):
    """Goes through a state and applies the rules to each leaf."""

    old: int
    new: int
    rules: dict[type, Resize]

    def node(self, node: Any, path: tuple[Any, ...], inside: _Inside) -> Any:
        """The node for the new workers; arguments are any part of a state, its path."""
        if is_report(node):
            return jax.tree.map(self._zeros, node) if inside.is_marked else node
        if is_per_worker(node):
            inside = inside._replace(is_marked=True)
        elif types.is_clock(node):
            inside = inside._replace(averages=False)
        elif isinstance(node, DistributedState):
            self._check_mixer(node, path, inside)
        elif inside.in_method:
            inside = inside._replace(averages=self._averages(node, inside))
        children, structure = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda x: x is not node
        )
        if jax.tree_util.treedef_is_leaf(structure) and len(children) == 1:
            return self._leaf(node, path, inside) if inside.is_marked else node
        rule = self.rules.get(type(node)) or Resize(type(node))
        values = []
        for key, child in children:
            inner, field = (*path, *key), getattr(key[0], "name", None)
            below = inside
            if isinstance(node, DistributedState) and field == "exchange":
                below = inside._replace(in_method=True, averages=False)
            if field in rule.handed_on:
                child = self._handed_on(child, inner)
            elif field not in rule.rebuilt:  # that is done afterwards
                child = self.node(child, inner, below)
            values.append(child)
        return jax.tree.unflatten(structure, values)

    def _zeros(self, x: Any) -> np.ndarray:
        """Nothing to report, as after a restore."""
        return np.zeros((self.new, *x.shape[1:]), x.dtype)

    def _handed_on(self, node: Any, path: tuple[Any, ...]) -> Any:
        """What new worker i takes from old worker i modulo their number."""

        def of(inner: Any, leaf: Any) -> Any:
            rows = leaf if is_key(leaf) else _on_host(leaf, (*path, *inner))
            return rows[np.arange(self.new) % self.old]

        return jax.tree_util.tree_map_with_path(of, node)

    def _averages(self, node: Any, inside: _Inside) -> bool:
        """Whether marked floats are averaged below a node of a method's state."""
        kind = type(node)
        if kind in self.rules or types.is_averaged_on_resize(kind):
            return True
        # A type that marks a field is a state of its own, and nobody declared it.
        has_marks = isinstance(node, tuple) and any(map(is_per_worker, node))
        return inside.averages and not has_marks

    def _check_mixer(self, node: DistributedState, path: Any, inside: _Inside) -> None:
        """Refuse the state of a mixer without a rule for another number of workers."""
        is_known = type(node.exchange) in self.rules
        if inside.is_marked and not is_known and jax.tree.leaves(node.exchange):
            raise UserError(
                f"{name_of(path)} holds the state of a mixer, a "
                f"{type(node.exchange).__name__}, which depends on the number of "
                "workers: give method=, the mixer for the new number, with an entry "
                "for this type in its `resize`"
            )

    def _leaf(self, leaf: Any, path: tuple[Any, ...], inside: _Inside) -> Any:
        if is_key(leaf):
            return succeeding_keys(leaf, self.new)
        rows = _on_host(leaf, path)
        if (alike := same(rows, self.new)) is not None:
            return alike
        where, is_float = name_of(path), jnp.issubdtype(rows.dtype, jnp.inexact)
        if is_float and inside.averages:
            return averaged(rows, self.new)
        if is_float:
            raise UserError(
                f"{where} differs between workers, and no rule says what becomes of it "
                "with another number of them: give method=, the exchange or mixer for "
                "the new number. If the state is your own, jaxcomp.averaged_on_resize "
                "declares its type, or an entry in `resize` of the exchange"
            )
        raise UserError(
            f"{where} ({rows.dtype}) differs between workers, so it can be neither "
            "averaged nor copied for another number of them: take it out of the "
            "state, make it the same on all workers, or go on with "
            f"{self.old} workers"
        )


def _on_host(leaf: Any, path: tuple[Any, ...]) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise UserError(
            f"{name_of(path)} lies in several processes: save the state, and restore "
            "it with the new number of workers"
        )
    return np.asarray(leaf)


def resized(
    state: Tree,
    workers: int,
    method: Exchange | Mixer | None = None,
    params: Callable[[Tree], Tree] | None = None,
) -> Tree:
    """The state for another number of workers, with the same mean over the workers.

    What is not yet sent is owed to the mean, and the mean of it over the workers stays
    the same; so does the mean of the workers' own models. New worker i of M takes what
    the old workers from i N / M to (i + 1) N / M had. Any number follows any other.

    Args:
      state: params, optimiser state and all else, of all workers. What differs between
        workers is marked `PerWorker` and has an axis of workers in front.
      workers: their new number.
      method: the exchange or mixer for this number. Mixers need it, and so do
        exchanges whose state depends on the place of a worker.
      params: from the state to the parameters; needed with these methods too.

    Returns:
      The state with NumPy arrays for what is marked; everything else is as it was.

    Raises:
      UserError: names the part that has no rule.

    Example:
      >>> import numpy as np
      >>> from jaxcomp.core.types import PerWorker
      >>> state = {"step": 3, "residual": PerWorker(np.float32([1, 3, 5, 7]))}
      >>> resized(state, 2)
      {'residual': PerWorker(value=array([2., 6.], dtype=float32)), 'step': 3}
    """
    if workers < 1:
        raise UserError(f"workers is at least 1, not {workers}")
    if isinstance(method, Mixer) and method.workers not in (None, workers):
        raise UserError(
            f"{method.name}: the graph has {method.workers} nodes, and there are to be "
            f"{workers} workers: give the mixer of the new graph"
        )
    old = workers_of(state)
    if old is None or old == workers:
        return state
    rules = {rule.of: rule for rule in (method.resize if method else ())}
    merged = _Resizing(old, workers, rules).node(state, (), _Inside())
    needed = [rule for rule in rules.values() if rule.rebuild]
    return _rebuilt(merged, workers, needed, params) if needed else merged


def workers_of(state: Tree) -> int | None:
    """How many workers a state is of; None if nothing in it is marked.

    Example:
      >>> import numpy as np
      >>> from jaxcomp.core.types import PerWorker
      >>> workers_of({"step": 3, "residual": PerWorker(np.zeros((4, 2)))})
      4
    """
    marked = [(path, leaf) for path, leaf, is_marked in with_marks(state) if is_marked]
    # A restored state has reports of the new number of workers.
    own = [(path, leaf) for path, leaf in marked if not is_report(leaf)]
    reported = [pair for _, x in marked for pair in tree_flatten_with_path(x)[0]]
    counts: dict[int, str] = {}
    for path, leaf in own or reported:
        name = name_of(path)
        if not leaves.is_array(leaf) or not leaf.ndim:
            raise UserError(f"{name} is marked and has no axis of workers")
        counts.setdefault(agreement.global_shape(leaf)[0], name)
    if len(counts) > 1:
        found = ", ".join(f"{name} of {count}" for count, name in counts.items())
        message = f"the marked parts are of different numbers of workers: {found}"
        raise UserError(message)
    return next(iter(counts), None)


def as_stored(like: Tree, stored: Mapping[str, Stored]) -> dict[str, Any] | None:
    """The leaves of a state by name, marked ones as a checkpoint has them, on the host.

    Args:
      like: the state to be restored.
      stored: the leaves of the checkpoint, by name.

    Returns:
      None if the numbers of workers are equal, or nothing is marked.
    """
    named, new = leaves.named(like), workers_of(like)
    marked = {name: leaf for name, (leaf, is_marked) in named.items() if is_marked}
    there = {name: _shape_there(name, leaf, stored) for name, leaf in marked.items()}
    counts = {shape[0] for shape in there.values() if shape}
    if new is None or len(counts) != 1 or counts == {new}:
        return None
    asked = {}
    for name, (leaf, is_marked) in named.items():
        if is_marked:
            spec = numbers_spec(leaf)
            shape = there[name] or (*counts, *spec.shape[1:])
            if leaves.is_empty(leaf):  # its name says its shape
                name = name.rpartition("[")[0] + str(list(shape))
            blank = np.broadcast_to(np.zeros((), spec.dtype), shape)
            leaf = as_keys(jnp.asarray(blank), leaf) if is_key(leaf) else blank
        asked[name] = leaf
    return asked


def _shape_there(
    name: str, leaf: Any, stored: Mapping[str, Stored]
) -> tuple[int, ...] | None:
    """What a checkpoint says; of arrays without elements it does so in their names."""
    if not leaves.is_empty(leaf):
        return stored[name].shape if name in stored else None
    start, of = name.rpartition("[")[:2]
    found = [other for other in stored if other.startswith(start + of)]
    return tuple(json.loads(found[0].removeprefix(start))) if found else None


def placed_like(
    resize: Callable[[Tree, int], Tree], state: Tree, like: Tree, where: Any
) -> Tree:
    """A state for the number of workers of `like`, its marked arrays placed as there.

    Args:
      resize: (state, workers) -> state, such as `resized`.
      state: of another number of workers; marked arrays are on the host.
      like: the state to be restored.
      where: the checkpoint, for messages.
    """
    count = workers_of(like)
    assert count is not None  # `as_stored` saw marked arrays
    found = list(leaves.by_name(resize(state, count)).values())
    wanted = leaves.named(like)
    if len(found) != len(wanted):
        raise CheckpointError(
            f"{where}: for {count} workers it has {len(found)} arrays, and this run "
            f"has {len(wanted)}"
        )

    def placed(name: str, x: Any, leaf: Any) -> Any:
        spec, rows = numbers_spec(leaf), np.asarray(numbers_of(x))
        shape = agreement.global_shape(spec)
        if rows.shape != shape:
            raise CheckpointError(
                f"{where}: for {count} workers {name} is {list(rows.shape)}, and in "
                f"this run {list(shape)}"
            )
        rows = rows.astype(spec.dtype, copy=False)
        return leaves.placed(agreement.own_rows(rows, spec), leaf)

    values = [
        placed(name, x, leaf) if is_marked else x
        for x, (name, (leaf, is_marked)) in zip(found, wanted.items(), strict=True)
    ]
    return leaves.with_reports(like, values)


def _rebuilt(
    state: Tree,
    workers: int,
    rules: list[Resize],
    params: Callable[[Tree], Tree] | None,
) -> Tree:
    """The state with the fields that are built anew."""
    names = trees.has_rebuilt(state, rules)
    if not names:
        return state
    if params is None:
        raise UserError(
            f"{', '.join(names)}: this state is built anew from the parameters: give "
            "params=, a function from the state to them, such as lambda state: "
            "state.params"
        )
    given = params(state)
    given = given.value if is_per_worker(given) else given
    _check_placed(state, given)
    with jax.default_device(_host()):
        return trees.built_anew(state, rules, given, workers)


def _check_placed(state: Tree, params: Tree) -> None:
    """Refuse params that do not tell how they are cut, if the state says they are."""
    found = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Comm))
    specs = [spec for x in found if isinstance(x, Comm) for spec in x.specs]
    cut = [spec for spec in specs if any(spec)]
    kinds = {type(getattr(x, "sharding", None)) for x in jax.tree.leaves(params)}
    if cut and NamedSharding not in kinds:
        raise UserError(
            f"params are cut by {cut[0]}, and params= gives arrays that are on no "
            "mesh: give those on the mesh of the new workers"
        )


def _host() -> Any:
    """A CPU, because the parts of all workers need not fit on a device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return None
