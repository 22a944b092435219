"""Trees of arrays in files, in formats that hold arrays and nothing that runs.

`.npz` and `.npy` are NumPy's own, without pickled objects. `.safetensors` is read too,
because other frameworks write it: a JSON header of names, dtypes and places, and the
bytes of all arrays behind it.
"""

import io
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxcomp.base import Tree
from jaxcomp.errors import UserError
from jaxcomp.files import write_atomically
from jaxcomp.trees import name_of

__all__ = ["load", "save"]

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
# What readers raise for a file that is not what its name says.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
    zipfile.BadZipFile,
)


def load(path: str | Path) -> Tree:
    """Read a tree, such as a gradient of a run of one's own.

    Names such as "block/conv/kernel" or "block.conv.weight" become nested dicts.

    Args:
      path: a file that ends in .npz, .npy or .safetensors.

    Raises:
      UserError: another ending, a damaged file, or arrays that are not floats.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise UserError(
            f"{path} ends in {path.suffix or 'nothing'!r}. Valid: {', '.join(_READERS)}"
        )
    try:
        arrays = read(path)
    except _DAMAGE as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for name, array in arrays.items():
        if not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
            what = f"{name!r} has" if name else "the array has"
            raise UserError(
                f"{path}: {what} the dtype {array.dtype}, which is no float"
            )
    if not arrays:
        raise UserError(f"{path} holds no arrays")
    return arrays[""] if set(arrays) == {""} else _nested(arrays, path)


def save(path: str | Path, tree: Tree) -> None:
    """Write a tree of arrays as .npz, by the names of its leaves.

    Args:
      path: a file that ends in .npz.
      tree: nested dicts of arrays. Others are written too, and read as nested dicts.

    Example:
      >>> import tempfile
      >>> file = Path(tempfile.mkdtemp()) / "gradient.npz"
      >>> save(file, {"dense": {"kernel": np.ones((2, 2), np.float32)}})
      >>> load(file)["dense"]["kernel"].shape
      (2, 2)
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise UserError(f"{path} has to end in .npz")
    flat = jax.tree_util.tree_leaves_with_path(tree)
    names = [name_of(leaf_path) for leaf_path, _ in flat]
    if "" in names or len(set(names)) != len(names):
        raise UserError("save needs a tree whose leaves have names, each one once")
    # NumPy would write bfloat16 as bytes without a type.
    wide = {
        name: np.asarray(leaf).astype(np.promote_types(leaf.dtype, np.float32))
        for name, (_, leaf) in zip(names, flat, strict=True)
    }
    whole = io.BytesIO()
    # What `np.savez` does, which has no room for a leaf of the name "file".
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in wide.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    write_atomically(path, whole.getvalue())


def _npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _npy(path: Path) -> dict[str, np.ndarray]:
    return {"": np.load(path, allow_pickle=False)}


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    if len(whole) < 8 + length:
        raise ValueError("it is cut off")
    header, body = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ValueError(f"{name!r} is of dtype {entry['dtype']}, not of {known}")
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        first, last = entry["data_offsets"]
        needed = math.prod(entry["shape"]) * dtype.itemsize
        if not 0 <= first <= last <= len(body) or last - first != needed:
            raise ValueError(f"{name!r} has not the bytes of its shape; is it cut off?")
        found[name] = np.frombuffer(body[first:last], dtype).reshape(entry["shape"])
    return found


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
}


def _nested(arrays: dict[str, np.ndarray], path: Path) -> Tree:
    """Dicts in dicts, one for each part of a name."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.replace(".", "/").split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        if not isinstance(node, dict) or last in node:
            raise UserError(f"{path}: {name!r} is both an array and a group of arrays")
        node[last] = array
    return tree
