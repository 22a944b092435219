"""What a checkpoint holds of each leaf of a state, and under which name.

A leaf has its path as its name, so a person can read the names, and no structure is
pickled. Two kinds of leaves have their dtype in the name too: arrays without elements,
of which only the name is written, and typed keys, which are written as integers. `Info`
is not written; it is zero after a restore.
"""

from typing import Any

import jax
import numpy as np

from jaxcomp.core.files import CheckpointError
from jaxcomp.core.trees import is_key, name_of, numbers_of
from jaxcomp.core.types import Tree, is_report
from jaxcomp.parallel import agreement


def by_name(state: Tree) -> dict[str, Any]:
    """The leaves of a state, by the names under which a checkpoint holds them.

    Example:
      >>> list(by_name({"w": [1.0, 2.0], "none": None, "key": jax.random.key(0)}))
      ['key: key<fry>', 'w.0', 'w.1']
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state, is_report)[0]:
        if is_report(leaf):
            continue
        name = name_of(path, separator=".")
        if not is_number(leaf) and not is_array(leaf):
            raise _strange(name, leaf)
        if is_empty(leaf):
            name += f": {leaf.dtype}{list(leaf.shape)}"
        elif is_key(leaf):
            name += f": {leaf.dtype}"
        if name in named:
            raise CheckpointError(
                f"two arrays of the state would be stored as {name!r}, one of them at "
                f"{jax.tree_util.keystr(path)}: rename it, for one would be lost"
            )
        named[name] = leaf
    return named


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
