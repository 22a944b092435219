"""The arrays of a checkpoint: where they lie, what is said of them, and all of them."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxcomp import checkpoint_folder, files, restoring
from jaxcomp.files import CheckpointError

__all__ = ["FORMAT", "described", "located", "orbax", "read_arrays"]

FORMAT = 2  # 1 also held each step's `Info`, and its manifest had no number


def located(folder: Path) -> Path:
    """The folder of the arrays of a checkpoint.

    Args:
      folder: of an undamaged checkpoint.

    Raises:
      CheckpointError: a later version, or another program, has written it.
    """
    version = files.format_of(folder) or FORMAT
    found = files.listed(folder) & set(checkpoint_folder.ARRAYS)
    if version > FORMAT:
        raise CheckpointError(
            f"{folder} was written by a later jaxcomp, in format {version}; this one "
            f"knows those up to {FORMAT}. Update jaxcomp, or take another folder"
        )
    if len(found) != 1:
        raise CheckpointError(f"{folder} lists no arrays: jaxcomp did not write it")
    return folder / found.pop()


def described(reader: Any, arrays: Path) -> dict[str, restoring.Stored]:
    """What a checkpoint says of its leaves, by name.

    Args:
      reader: of orbax.
      arrays: from `located`.
    """
    scalar = orbax().metadata.ScalarMetadata
    metadata = reader.metadata(arrays)
    tree = getattr(metadata, "item_metadata", metadata)
    return {
        name: restoring.Stored(
            tuple(leaf.shape),
            jnp.dtype(leaf.dtype).name,
            is_number=isinstance(leaf, scalar),
        )
        for name, leaf in dict(getattr(tree, "tree", tree)).items()
    }


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """All leaves of an undamaged checkpoint on the host, by the names stored with them.

    Args:
      folder: absolute.
    """
    arrays = located(folder)
    with orbax().StandardCheckpointer() as reader:
        asked = {
            name: restoring.target(None, leaf)
            for name, leaf in described(reader, arrays).items()
        }
        got = reader.restore(arrays, asked)
    return {name: np.asarray(leaf) for name, leaf in got.items()}


def orbax() -> Any:
    """Import orbax only here, because the rest of the library works without it."""
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        message = "checkpoints are written by orbax: pip install 'jaxcomp[train]'"
        raise ImportError(message) from error
    return ocp
