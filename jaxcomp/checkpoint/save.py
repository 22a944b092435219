"""A state as one whole checkpoint: save it, and restore it to the bit."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.checkpoint import leaves
from jaxcomp.checkpoint.resize import as_stored, placed_like
from jaxcomp.core import files
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.types import Tree
from jaxcomp.parallel.agreement import check_alike, on_all_processes
from jaxcomp.parallel.placing import sum_over_processes
from jaxcomp.transforms.check_state import check_state

FORMAT = 2  # 1 also held each step's `Info`, and its manifest had no number
# A new checkpoint takes the name that the previous one does not have.
ARRAYS = ("arrays", "arrays_2")
_UNFINISHED = ".orbax-checkpoint-tmp"  # a suffix of orbax while it writes
BEGUN = f".{files.MANIFEST}.begun"  # exists while a checkpoint is written
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
    _orbax()
    path = _path_of(folder)

    def check() -> None:
        if not allow:
            check_state(state)
        others = _others(path)
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
    _orbax()
    path = _path_of(folder)

    def check() -> None:
        if (path / files.MANIFEST).exists():
            return
        others = _others(path)
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
        _tidy(folder)
        (folder / BEGUN).touch()
        return 1 if ARRAYS[0] in files.listed(folder) else 0

    # Only the first process looks, because others may see its files late.
    choice = np.array([on_all_processes(prepare)])
    arrays = ARRAYS[int(sum_over_processes(choice)[0])]
    writer = _orbax().StandardCheckpointer()
    writer.save(folder / arrays, values, force=True)

    def finish() -> None:
        with writer:  # closes it
            writer.wait_until_finished()
        if not is_first:
            return
        for name, text in (texts or {}).items():
            files.write_atomically(folder / name, text)
        files.write_manifest(folder, [arrays, *(texts or {})], FORMAT)
        _tidy(folder)

    return finish


def read(folder: Path, like: Tree, resize: Resizer | None = None) -> Tree:
    """Read the state of an undamaged checkpoint.

    Args:
      folder: absolute.
      like: as in `restore`.
      resize: as in `restore`.
    """
    with _opened(folder) as (stored, arrays_of):
        others = as_stored(like, stored) if resize else None
        asked = others or leaves.by_name(like)
        leaves.check_fit(asked, stored, folder)
        got = arrays_of(asked)
    values = [leaves.restored(n, x, stored[n], got[n]) for n, x in asked.items()]
    state = leaves.with_reports(like, values)
    if not others or not resize:
        return state
    return placed_like(resize, state, like, folder)


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """All leaves of an undamaged checkpoint on the host, by the names stored with them.

    Args:
      folder: absolute.
    """
    with _opened(folder) as (_, arrays_of):
        return {name: np.asarray(leaf) for name, leaf in arrays_of({}).items()}


def damage(folder: Path) -> str | None:
    """Why a checkpoint is not whole, or None; it is the same on all processes."""
    found = files.damage(folder)
    count = sum_over_processes(np.array([found is not None]))[0]
    return found if found or not count else "another process cannot read it"


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[tuple[dict[str, leaves.Stored], Any]]:
    """What an undamaged checkpoint says of its leaves, and a function that reads them.

    The function takes the leaves in whose places arrays are wanted, by name; the others
    come to the host.

    Raises:
      CheckpointError: a later version, or another program, has written it.
    """
    version = files.format_of(folder) or FORMAT
    found = files.listed(folder) & set(ARRAYS)
    if version > FORMAT:
        raise CheckpointError(
            f"{folder} was written by a later jaxcomp, in format {version}; this one "
            f"knows those up to {FORMAT}. Update jaxcomp, or take another folder"
        )
    if len(found) != 1:
        raise CheckpointError(f"{folder} lists no arrays: jaxcomp did not write it")
    arrays, ocp = folder / found.pop(), _orbax()
    with ocp.StandardCheckpointer() as reader:
        metadata = reader.metadata(arrays)
        tree = getattr(metadata, "item_metadata", metadata)
        stored = {
            name: leaves.Stored(
                tuple(leaf.shape),
                jnp.dtype(leaf.dtype).name,
                is_number=isinstance(leaf, ocp.metadata.ScalarMetadata),
            )
            for name, leaf in dict(getattr(tree, "tree", tree)).items()
        }

        def arrays_of(asked: Mapping[str, Any]) -> dict[str, Any]:
            targets = {n: leaves.target(asked.get(n), x) for n, x in stored.items()}
            return reader.restore(arrays, targets)

        yield stored, arrays_of


def _orbax() -> Any:
    """Import orbax only here, because the rest of the library works without it."""
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        message = "checkpoints are written by orbax: pip install 'jaxcomp[train]'"
        raise ImportError(message) from error
    return ocp


def _path_of(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder; refuses URLs and files."""
    if "://" in os.fspath(folder):
        message = f"{folder} is no folder of a file system: save to one, and copy that"
        raise CheckpointError(message)
    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file, and a checkpoint is a folder")
    return path


def _others(folder: Path) -> list[str]:
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


def _tidy(folder: Path) -> None:
    """Remove what a kill has left, and the previous checkpoint if there is one."""
    for gone in folder.glob(".arrays*.gone"):
        shutil.rmtree(gone)
    for name in _left(folder):
        # Renamed first, because a kill may interrupt the removal.
        shutil.rmtree((folder / name).rename(folder / f".{name}.gone"))
    for temporary in folder.glob(f".{files.MANIFEST}.*"):
        temporary.unlink()
