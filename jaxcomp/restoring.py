"""How the leaves of a state are restored from what a checkpoint holds.

Each leaf comes back as it was in the state: as an array on the same devices, a NumPy
array, a typed key or a number of Python. `Info` is not written; it is zero again.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import processes
from jaxcomp.base import Tree, is_report
from jaxcomp.files import CheckpointError
from jaxcomp.keys import as_keys, numbers_spec
from jaxcomp.leaves import is_empty, is_number

__all__ = ["Stored", "check_fit", "restored", "target", "with_reports"]


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
    if processes.is_stack(sharding):
        return processes.stacked_spec(numbers_spec(like))
    if sharding is None or is_free or processes.is_local(sharding) or stored.is_number:
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
        if processes.is_stack(like.sharding):
            got = processes.local_stack(got, like.sharding)
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
    if processes.is_stack(getattr(like, "sharding", None)):
        data = processes.stacked_spec(data)
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
