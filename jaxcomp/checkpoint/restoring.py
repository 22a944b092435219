"""Read a checkpoint's arrays into a state, of as many workers or of others."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.checkpoint import leaves
from jaxcomp.checkpoint.leaves import is_empty, is_number
from jaxcomp.core import files
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.trees import as_keys, is_key, numbers_of, numbers_spec
from jaxcomp.core.types import Tree, is_per_worker, is_report
from jaxcomp.parallel import agreement

# A new checkpoint takes the name that the previous one does not have.
ARRAYS = ("arrays", "arrays_2")
_UNFINISHED = ".orbax-checkpoint-tmp"  # a suffix of orbax while it writes
BEGUN = f".{files.MANIFEST}.begun"  # exists while a checkpoint is written


def path_of(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder; refuses URLs and files."""
    if "://" in os.fspath(folder):
        message = f"{folder} is no folder of a file system: save to one, and copy that"
        raise CheckpointError(message)
    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file, and a checkpoint is a folder")
    return path


def others(folder: Path) -> list[str]:
    """Files in a folder that belong to no checkpoint, except hidden files."""
    if not folder.is_dir():
        return []
    known = files.listed(folder) & set(ARRAYS)
    ours = {*known, *_left(folder), *([files.MANIFEST] if known else [])}
    names = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    return sorted(names - ours)


def _left(folder: Path) -> list[str]:
    """Folders of arrays that a kill has left, and those of the previous checkpoint."""
    known = files.listed(folder) & set(ARRAYS)
    has_begun = bool(known) or (folder / BEGUN).exists()
    unfinished = [f"{name}{_UNFINISHED}" for name in ARRAYS]
    names = [*ARRAYS, *unfinished] if has_begun else unfinished
    return [n for n in names if n not in known and (folder / n).exists()]


def tidy(folder: Path) -> None:
    """Remove what a kill has left, and the previous checkpoint if there is one."""
    for gone in folder.glob(".arrays*.gone"):
        shutil.rmtree(gone)
    for name in _left(folder):
        # Renamed first, because a kill may interrupt the removal.
        shutil.rmtree((folder / name).rename(folder / f".{name}.gone"))
    for temporary in folder.glob(f".{files.MANIFEST}.*"):
        temporary.unlink()


class Stored(NamedTuple):
    """What a checkpoint says of a leaf before it is read."""

    shape: tuple[int, ...]
    dtype: str
    is_number: bool = False  # a number of Python, which JAX types weakly


def check_fit(like: dict[str, Any], stored: dict[str, Stored], where: Any) -> None:
    """Refuse a checkpoint of another state, and say what differs.

    Args:
      like: the leaves of the state to be restored, from `by_name`.
      stored: the leaves of the checkpoint.
      where: the checkpoint, for the message.
    """
    for name, leaf in like.items():
        if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is None:
            raise CheckpointError(
                f"nothing says where {name} is to live: give the freshly built state "
                "itself, or jax.ShapeDtypeStruct(shape, dtype, sharding=...)"
            )
    differences = [f"only in the checkpoint: {n}" for n in stored if n not in like]
    differences += [f"only in this run: {n}" for n in like if n not in stored]
    differences += [
        f"{n}: checkpoint {_shown(stored[n])}, this run {_shown(_expected(leaf))}"
        for n, leaf in like.items()
        if n in stored and not _fits(stored[n], _expected(leaf))
    ]
    if differences:
        shown = "\n  ".join(differences[:8])
        more = f"\n  and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise CheckpointError(f"{where} is of another state:\n  {shown}{more}")


def target(like: Any, stored: Stored) -> Any:
    """What orbax is to return: an array on devices, or a NumPy array on the host.

    Args:
      like: a leaf of the state to be restored.
      stored: what the checkpoint says of it.
    """
    sharding = getattr(like, "sharding", None)
    # Uncommitted arrays, such as the counters of a new optimiser, may be on any device.
    # Orbax would commit them to one, and jit refuses arrays of different devices.
    is_free = not getattr(like, "committed", True)
    if agreement.is_stack(sharding):
        return agreement.stacked_spec(numbers_spec(like))
    if sharding is None or is_free or agreement.is_local(sharding) or stored.is_number:
        return np.broadcast_to(np.zeros((), stored.dtype), stored.shape)
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=sharding)


def restored(name: str, like: Any, stored: Stored, got: Any) -> Any:
    """The restored leaf, of the same kind as `like`.

    Args:
      name: of the leaf, for messages.
      like: a leaf of the state to be restored.
      stored: what the checkpoint says of it.
      got: what orbax returned for `target`.
    """
    if is_number(like):
        return type(like)(np.asarray(got).item())
    if isinstance(got, jax.Array):
        if agreement.is_stack(like.sharding):
            got = agreement.local_stack(got, like.sharding)
        return as_keys(got, like)
    spec = numbers_spec(like)
    if is_empty(like):
        got = np.zeros(spec.shape, spec.dtype)
    else:
        got = _exactly(name, np.asarray(got), spec.dtype)
        if isinstance(like, np.generic):
            return like.dtype.type(got)
        if stored.is_number and isinstance(like, jax.Array | jax.ShapeDtypeStruct):
            got = _weak(got)
    return got if isinstance(like, np.ndarray) else as_keys(_placed(got, like), like)


def with_reports(like: Tree, values: Iterable[Any]) -> Tree:
    """A state from its leaves, with an `Info` of zeros where it has one.

    Args:
      like: a state of the same structure.
      values: the other leaves, in the order of `by_name`.
    """
    following = iter(values)

    def zero(leaf: Any) -> Any:
        data = None if is_number(leaf) else numbers_spec(leaf)
        got = np.zeros(data.shape, data.dtype) if data is not None else np.zeros(())
        return restored("", leaf, Stored(got.shape, got.dtype.name), got)

    return jax.tree.map(
        lambda x: jax.tree.map(zero, x) if is_report(x) else next(following),
        like,
        is_leaf=is_report,
    )


def _expected(like: Any) -> Stored:
    """What a checkpoint has to say of a leaf."""
    if is_empty(like):
        return Stored((), "bool", is_number=True)
    if is_number(like):
        return Stored((), np.asarray(like).dtype.name, is_number=True)
    data = numbers_spec(like)
    if agreement.is_stack(getattr(like, "sharding", None)):
        data = agreement.stacked_spec(data)
    return Stored(tuple(data.shape), jnp.dtype(data.dtype).name)


def _fits(stored: Stored, expected: Stored) -> bool:
    """Whether a stored leaf can be restored as the expected one.

    A number may be restored as an array without axes, and the other way round: a count
    of steps may begin as Python's 0 and be an array after the first step.
    """
    if not stored.is_number and not expected.is_number:
        return stored[:2] == expected[:2]
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    pair = (stored.dtype, expected.dtype)
    is_same = any(all(jnp.issubdtype(x, kind) for x in pair) for kind in kinds)
    return is_same and stored.shape == expected.shape == ()


def _shown(stored: Stored) -> str:
    return f"{stored.dtype}{list(stored.shape)}"


def _exactly(name: str, got: np.ndarray, dtype: Any) -> np.ndarray:
    """The array in a dtype; refuses values that the dtype cannot hold."""
    if got.dtype == dtype:
        return got
    with np.errstate(all="ignore"):
        result = got.astype(dtype)
    if not np.array_equal(result, got, equal_nan=jnp.issubdtype(dtype, jnp.inexact)):
        raise CheckpointError(
            f"{name}: checkpoint {got.dtype} {got.item()}, which {dtype}, as it is in "
            "this run, does not hold"
        )
    return result


def _weak(number: np.ndarray) -> Any:
    """A weakly typed array, if the number has the default dtype of its kind."""
    value = number.item()
    is_usual = jnp.asarray(type(value)()).dtype == number.dtype
    return jnp.asarray(value) if is_usual else number


def _placed(x: Any, like: Any) -> jax.Array:
    """The array on the devices of `like`, uncommitted if that is."""
    if not getattr(like, "committed", True):
        return jnp.asarray(x)
    return jax.device_put(x, like.sharding)


def workers_of(like: Tree) -> int | None:
    """How many workers a state is of, over all processes; None if nothing is marked.

    Args:
      like: a state, or a tree of `jax.ShapeDtypeStruct` with shardings.
    """
    marked = [leaf for leaf, is_marked in _leaves(like) if is_marked and np.ndim(leaf)]
    return _shape(marked[0])[0] if marked else None


def as_stored(like: Tree, stored: Mapping[str, Stored]) -> Tree:
    """The state with the number of workers that a checkpoint has.

    If the numbers are equal, or nothing is marked, the result is `like` itself.

    Args:
      like: the state to be restored.
      stored: the leaves of the checkpoint, by name.
    """
    new = workers_of(like)
    named = zip(leaves.by_name(like).items(), _leaves(like), strict=True)
    found = {
        shape[0]
        for (name, leaf), (_, is_marked) in named
        if is_marked and (shape := _shape_there(name, leaf, stored))
    }
    if new is None or len(found) != 1 or found == {new}:
        return like
    [old] = found
    names = iter(leaves.by_name(like))

    def then(leaf: Any, is_marked: bool) -> Any:
        name = next(names)
        if not is_marked:
            return leaf
        spec = numbers_spec(leaf)
        shape = _shape_there(name, leaf, stored) or (old, *spec.shape[1:])
        if is_key(leaf):
            return as_keys(jnp.zeros(shape, spec.dtype), leaf)
        return np.broadcast_to(np.zeros((), spec.dtype), shape)

    return _mapped(then, like)


def _shape_there(
    name: str, leaf: Any, stored: Mapping[str, Stored]
) -> tuple[int, ...] | None:
    """What a checkpoint says; of arrays without elements it does so in their names."""
    if not leaves.is_empty(leaf):
        return stored[name].shape if name in stored else None
    start, of = name.rpartition("[")[:2]
    found = [other for other in stored if other.startswith(start + of)]
    return tuple(json.loads(found[0].removeprefix(start))) if found else None


def placed_like(state: Tree, like: Tree, where: Any) -> Tree:
    """A state whose marked arrays are placed as those of `like`.

    Args:
      state: for the number of workers of `like`; marked arrays are on the host.
      like: the state to be restored.
      where: the checkpoint, for messages.
    """
    found = [leaf for leaf, _ in _leaves(state)]
    names, wanted = list(leaves.by_name(like)), list(_leaves(like))
    if len(found) != len(wanted):
        raise CheckpointError(
            f"{where}: for {workers_of(like)} workers it has {len(found)} arrays, and "
            f"this run has {len(wanted)}"
        )

    def placed(name: str, x: Any, leaf: Any, is_marked: bool) -> Any:
        if not is_marked:
            return x
        rows, shape = np.asarray(numbers_of(x)), _shape(leaf)
        if rows.shape != shape:
            raise CheckpointError(
                f"{where}: for {workers_of(like)} workers {name} is "
                f"{list(rows.shape)}, and in this run {list(shape)}"
            )
        return _put(rows.astype(numbers_spec(leaf).dtype, copy=False), leaf)

    quadruples = zip(names, found, wanted, strict=True)
    return with_reports(like, [placed(name, x, *pair) for name, x, pair in quadruples])


def _put(rows: np.ndarray, like: Any) -> Any:
    """An array on the devices of `like`, or on the host."""
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return rows
    if agreement.is_stack(sharding):
        first = jax.process_index() * like.shape[0]
        put = jax.device_put(rows[first : first + like.shape[0]], sharding)
    elif not getattr(like, "committed", True):
        put = jnp.asarray(rows)
    elif is_key(like):
        put = jax.device_put(rows, numbers_spec(like).sharding)
    else:
        put = jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
    return as_keys(put, like)


def _shape(like: Any) -> tuple[int, ...]:
    """The shape of a leaf, as integers and of all processes."""
    if agreement.is_stack(getattr(like, "sharding", None)):
        return tuple(agreement.stacked_spec(numbers_spec(like)).shape)
    return tuple(numbers_spec(like).shape)


def _nodes(tree: Tree) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda n: is_per_worker(n) or is_report(n))


def _leaves(tree: Tree) -> Iterator[tuple[Any, bool]]:
    """The leaves that a checkpoint holds, in the order of `by_name`; whether marked."""
    for node in _nodes(tree):
        for leaf in jax.tree.leaves(node, is_leaf=is_report):
            if not is_report(leaf):
                yield leaf, is_per_worker(node)


def _mapped(change: Any, tree: Tree) -> Tree:
    """The tree with `change(leaf, whether it is marked)`; reports stay."""

    def of(node: Any) -> Any:
        if is_report(node):
            return node
        return jax.tree.map(
            lambda x: x if is_report(x) else change(x, is_per_worker(node)),
            node,
            is_leaf=is_report,
        )

    return jax.tree.map(of, tree, is_leaf=lambda n: is_per_worker(n) or is_report(n))
