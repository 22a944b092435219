"""The leaves of a state: their names in a checkpoint, and each one written and read.

A leaf has its path as its name, so a person can read the names, and no structure is
pickled. Two kinds of leaves have their dtype in the name too: arrays without elements,
of which only the name is written, and typed keys, which are written as integers. `Info`
is not written; it is zero after a restore.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.files import CheckpointError
from jaxcomp.core.trees import as_keys, is_key, name_of, numbers_of, numbers_spec
from jaxcomp.core.types import Tree, is_report
from jaxcomp.parallel import agreement
from jaxcomp.parallel.placing import to_host, with_marks


def named(state: Tree) -> dict[str, tuple[Any, bool]]:
    """The leaves by the names under which a checkpoint holds them; whether marked.

    Example:
      >>> from jaxcomp.core.types import PerWorker
      >>> named({"w": 1.0, "own": PerWorker(2.0), "key": jax.random.key(0)}).keys()
      dict_keys(['key: key<fry>', 'own.value', 'w'])
    """
    found: dict[str, tuple[Any, bool]] = {}
    for path, leaf, is_marked in with_marks(state):
        if is_report(leaf):
            continue
        name = name_of(path, separator=".")
        if not is_number(leaf) and not is_array(leaf):
            raise _strange(name, leaf)
        if is_empty(leaf):
            name += f": {leaf.dtype}{list(leaf.shape)}"
        elif is_key(leaf):
            name += f": {leaf.dtype}"
        if name in found:
            raise CheckpointError(
                f"two arrays of the state would be stored as {name!r}, one of them at "
                f"{jax.tree_util.keystr(path)}: rename it, for one would be lost"
            )
        found[name] = leaf, is_marked
    return found


def by_name(state: Tree) -> dict[str, Any]:
    """The leaves of a state, by the names under which a checkpoint holds them.

    Example:
      >>> list(by_name({"w": [1.0, 2.0], "none": None, "key": jax.random.key(0)}))
      ['key: key<fry>', 'w.0', 'w.1']
    """
    return {name: leaf for name, (leaf, _) in named(state).items()}


def written(state: Tree) -> dict[str, Any]:
    """The arrays and numbers that are written, by name.

    Example:
      >>> import jax.numpy as jnp
      >>> written({"step": 3, "lr": np.float32(0.5), "none": jnp.zeros(0)})
      {'lr': array(0.5, dtype=float32), 'none: float32[0]': True, 'step': 3}
    """
    values = {name: _written(name, leaf) for name, leaf in by_name(state).items()}
    if not values:
        raise CheckpointError("the state holds nothing that could be written")
    return values


def is_array(leaf: Any) -> bool:
    """True for arrays of JAX and NumPy, and for specs of them."""
    kinds = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    return isinstance(leaf, kinds)


def is_number(leaf: Any) -> bool:
    """True for numbers of Python; some of NumPy inherit from these and are arrays."""
    is_any = isinstance(leaf, bool | int | float | complex)
    return is_any and not isinstance(leaf, np.generic)


def is_empty(leaf: Any) -> bool:
    """True for arrays without elements."""
    return is_array(leaf) and not leaf.size


def _written(name: str, leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise _strange(name, leaf)
    if is_empty(leaf):
        return True
    leaf = numbers_of(leaf)
    if isinstance(leaf, jax.Array):
        if leaf.weak_type and not leaf.ndim:
            leaf = np.asarray(leaf.addressable_data(0)).item()
        elif agreement.is_stack(leaf.sharding):
            leaf = agreement.stacks_of_all(leaf)
        elif agreement.is_local(leaf.sharding):
            leaf = np.asarray(leaf)  # of one process; all of them have the same
    elif isinstance(leaf, np.generic | complex):
        leaf = np.asarray(leaf)
    _check_dtype(name, leaf.dtype if is_array(leaf) else np.asarray(leaf).dtype)
    return leaf


def _strange(name: str, leaf: Any) -> CheckpointError:
    return CheckpointError(
        f"{name} is a {type(leaf).__name__}, and a checkpoint holds arrays, numbers "
        "and keys: leave it out of the state, or put None in its place"
    )


def _check_dtype(name: str, dtype: Any) -> None:
    """Refuse dtypes that orbax cannot write; its own message names no leaf."""
    import tensorstore  # what orbax writes with; of the extra `train`

    try:
        tensorstore.dtype(np.dtype(dtype).name)
    except (TypeError, ValueError):
        raise CheckpointError(
            f"{name} is of dtype {dtype}, which orbax cannot write: give it another "
            "one before, such as int8 or float32"
        ) from None


class Stored(NamedTuple):
    """What a checkpoint says of a leaf before it is read."""

    shape: tuple[int, ...]
    dtype: str
    is_number: bool = False  # a number of Python, which JAX types weakly


def check_fit(like: dict[str, Any], stored: dict[str, Stored], where: Any) -> None:
    """Refuse a checkpoint of another state, and say what differs.

    Args:
      like: the leaves of the state to be restored, by name.
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
            got = jax.device_put(to_host(got), like.sharding)  # of its own workers
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
    return got if isinstance(like, np.ndarray) else placed(got, like)


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


def placed(x: Any, like: Any) -> Any:
    """An array where `like` is: on its devices, uncommitted if that is, or the host.

    Args:
      x: on the host, the same in all processes; keys as their integers.
      like: an array, or a spec with a sharding.
    """
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return x
    if not getattr(like, "committed", True):
        x = jnp.asarray(x)
    elif sharding.is_fully_addressable or not np.ndim(x):
        x = jax.device_put(x, sharding)
    else:
        x = jax.make_array_from_callback(x.shape, sharding, x.__getitem__)
    return as_keys(x, like)
