"""A state as one whole checkpoint: save it, and restore it to the bit."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.checkpoint import leaves, restoring
from jaxcomp.checkpoint import restoring as checkpoint_folder
from jaxcomp.checkpoint import restoring as resized_reading
from jaxcomp.core import files
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.types import Tree
from jaxcomp.parallel.agreement import check_alike, on_all_processes
from jaxcomp.transforms.check_state import check_state

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


# (state of all workers on the host, their new number) -> state
Resizer: TypeAlias = Callable[[Tree, int], Tree]


class NoCheckpoint(CheckpointError, FileNotFoundError):
    """The folder holds no checkpoint, or only one that was never finished."""


def save(folder: str | os.PathLike[str], state: Tree, *, allow: bool = False) -> None:
    """Write a state into a folder, in place of a previous checkpoint.

    The loop may use pmap, `shard_map`, vmap or jit with shardings, and flax, nnx, haiku
    or equinox. The state may hold arrays of JAX and NumPy, typed keys and numbers. If
    the process is killed meanwhile, the previous checkpoint stays as it was. Where
    there are several processes, all of them call it with the same shared folder.

    Args:
      folder: on a file system. It is made if it does not exist; a folder that holds
        other files is refused.
      state: as the step returned it, with the parts of all workers.
      allow: also write a state that `check_state` refuses.

    Raises:
      ValueError: `check_state` refuses the state.
      CheckpointError: names the folder or the leaf that cannot be written.

    Example:
      >>> import tempfile
      >>> import jax.numpy as jnp
      >>> folder = tempfile.mkdtemp()
      >>> save(folder, {"w": jnp.ones(2), "step": 7})
      >>> restore(folder, {"w": jnp.zeros(2), "step": 0})
      {'step': 7, 'w': Array([1., 1.], dtype=float32)}
    """
    orbax()
    path = checkpoint_folder.path_of(folder)

    def check() -> None:
        if not allow:
            check_state(state)
        others = checkpoint_folder.others(path)
        if others:
            raise CheckpointError(
                f"{path} holds other things, or a damaged checkpoint: {others[0]!r}. "
                "Take another folder, or remove that"
            )

    on_all_processes(check)
    write(path, state)


def restore(
    folder: str | os.PathLike[str], like: Tree, *, resize: Resizer | None = None
) -> Tree:
    """Read the state of a checkpoint, equal to the bit; each `Info` in it is zero.

    Args:
      folder: as in `save`.
      like: a state of the same structure, shapes and dtypes, such as the initial state
        of a new process. It says on which devices each array is to be, and which leaves
        are NumPy arrays or numbers. `jax.ShapeDtypeStruct` with a sharding stands for
        an array.
      resize: (state, workers) -> state, such as `jaxcomp.resized`. It is called if the
        checkpoint is of another number of workers than `like`, which is otherwise an
        error.

    Raises:
      NoCheckpoint: a `FileNotFoundError`: the folder holds no checkpoint yet.
      CheckpointError: names the damaged file, or how the states differ.

    Example:
      >>> import tempfile
      >>> try:
      ...     restore(tempfile.mkdtemp(), {"step": 0})
      ... except FileNotFoundError:
      ...     print("a new run")
      a new run
    """
    orbax()
    path = checkpoint_folder.path_of(folder)

    def check() -> None:
        if (path / files.MANIFEST).exists():
            return
        others = checkpoint_folder.others(path)
        if others:
            message = f"{path} holds no checkpoint of jaxcomp, but {others[0]!r}"
            raise CheckpointError(message)
        raise NoCheckpoint(f"{path} holds no checkpoint, or none that was finished")

    on_all_processes(check)
    problem = damage(path)
    if problem:
        raise CheckpointError(f"the checkpoint {path} is damaged: {problem}")
    return read(path, like, resize=resize)


def write(folder: Path, state: Tree, texts: Mapping[str, str] | None = None) -> None:
    """Write a checkpoint; all processes call it. Arguments as in `begin`."""
    on_all_processes(begin(folder, state, texts))


def begin(
    folder: Path, state: Tree, texts: Mapping[str, str] | None = None
) -> Callable[[], None]:
    """Copy a state to the host and begin to write it; all processes call it.

    Args:
      folder: absolute. The checkpoint in it stays usable until the new one is whole.
      state: arrays are global, or equal in all processes. It may change afterwards.
      texts: small files beside the arrays, by name; for a new folder.

    Returns:
      A function that waits for the arrays and writes the manifest. All processes call
      it, from any thread.
    """
    is_first = jax.process_index() == 0
    values = on_all_processes(lambda: leaves.written(state))
    check_alike(values)

    def prepare() -> int:
        if not is_first:
            return 0
        if not folder.exists():
            folder.mkdir(parents=True)
            files.sync(folder.parent)
        checkpoint_folder.tidy(folder)
        (folder / checkpoint_folder.BEGUN).touch()
        return 1 if checkpoint_folder.ARRAYS[0] in files.listed(folder) else 0

    # Only the first process looks, because others may see its files late.
    choice = np.array([on_all_processes(prepare)])
    arrays = checkpoint_folder.ARRAYS[int(parallel.sum_over_processes(choice)[0])]
    writer = orbax().StandardCheckpointer()
    writer.save(folder / arrays, values, force=True)

    def finish() -> None:
        with writer:  # closes it
            writer.wait_until_finished()
        if not is_first:
            return
        for name, text in (texts or {}).items():
            files.write_atomically(folder / name, text)
        files.write_manifest(folder, [arrays, *(texts or {})], FORMAT)
        checkpoint_folder.tidy(folder)

    return finish


def read(
    folder: Path,
    like: Tree,
    resize: Resizer | None = None,
) -> Tree:
    """Read the state of an undamaged checkpoint.

    Args:
      folder: absolute.
      like: as in `restore`.
      resize: as in `restore`.
    """
    arrays = located(folder)
    with orbax().StandardCheckpointer() as reader:
        stored = described(reader, arrays)
        asked_for = resized_reading.as_stored(like, stored) if resize else like
        wanted = leaves.by_name(asked_for)
        restoring.check_fit(wanted, stored, folder)
        asked = {name: restoring.target(wanted[name], x) for name, x in stored.items()}
        got = reader.restore(arrays, asked)
    values = [
        restoring.restored(name, leaf, stored[name], got[name])
        for name, leaf in wanted.items()
    ]
    state = restoring.with_reports(asked_for, values)
    if resize is None or asked_for is like:
        return state
    count = resized_reading.workers_of(like)
    assert count is not None  # `as_stored` saw marked arrays
    return resized_reading.placed_like(resize(state, count), like, folder)


def damage(folder: Path) -> str | None:
    """Why a checkpoint is not whole, or None; it is the same on all processes."""
    found = files.damage(folder)
    count = parallel.sum_over_processes(np.array([found is not None]))[0]
    return found if found or not count else "another process cannot read it"
