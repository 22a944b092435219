"""Several processes that write or read one checkpoint together.

Under pmap an array belongs to one process. Each process has its own copy of state that
is the same on all workers. Of state that differs, it has the stack of its own workers;
the stacks of all processes make one global array.
"""

import platform
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.core.errors import message_of
from jaxcomp.core.files import CheckpointError
from jaxcomp.parallel.cluster import Silent, texts_of_all
from jaxcomp.parallel.placing import of_processes
from jaxcomp.parallel.workers import AXIS

T = TypeVar("T")
# Writing a large checkpoint takes long, and the heartbeat notices who is dead.
_AGREE_SECONDS = 3600
# Who has failed does not wait for those who are elsewhere, such as in a barrier that it
# will not come to. They hear of it when they come here, or when jax misses it.
_TELL_SECONDS = 10


class PeerFailed(CheckpointError):
    """Another process failed, so that this one cannot go on either."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def on_all_processes(act: Callable[[], T]) -> T:
    """Run a function on every process; an error on one is an error on all.

    Otherwise the others would wait for the failed process in the next collective.

    Raises:
      PeerFailed: with the message of the process that failed.
    """
    if jax.process_count() == 1:
        return act()
    result: Any = None
    error = None
    try:
        result = act()
    except Exception as raised:
        error = raised
    seconds = _AGREE_SECONDS if error is None else _TELL_SECONDS
    try:
        failed = texts_of_all(_told(error), seconds)
    except Silent as silence:
        failed = silence.texts
        if not failed and error is None:
            raise
    if error is not None:
        raise error
    for index, text in failed.items():
        code, host, message = text.split("\n", 2)
        message = f"another process failed: process {index} on {host}: {message}"
        raise PeerFailed(message, int(code))
    return result


def _told(error: Exception | None) -> str:
    """What the others are told of an error: exit code, host and message."""
    if error is None:
        return ""
    code = getattr(error, "exit_code", 1)
    return f"{code}\n{platform.node()}\n{message_of(error)}"


def check_alike(values: dict[str, Any]) -> None:
    """Refuse values without a device that differ between processes.

    A checkpoint would keep those of one process.

    Args:
      values: by name, the same names on all processes.
    """
    local = {
        n: np.asarray(x) for n, x in values.items() if not isinstance(x, jax.Array)
    }
    if jax.process_count() == 1 or not local:
        return
    digests = [zlib.crc32(x.tobytes()) for x in local.values()]
    rows = of_processes(np.array(digests, np.uint32))
    differing = [
        n for n, column in zip(local, rows.T, strict=True) if len({*column}) > 1
    ]
    if differing:
        raise CheckpointError(
            f"{differing[0]} differs between processes, and is on no device that they "
            "share, so that one process's would be kept for all: make it a global "
            "array, as jaxcomp.parallel.place does"
        )


def is_local(sharding: Any) -> bool:
    """Whether there are several processes, and an array is on this one alone."""
    return jax.process_count() > 1 and sharding.is_fully_addressable


def is_stack(sharding: Any) -> bool:
    """Whether an array is the stack of this process's workers, as under pmap."""
    is_named = isinstance(sharding, NamedSharding)
    return is_named and is_local(sharding) and sharding.spec[:1] not in ((), (None,))


def stacks_of_all(x: jax.Array) -> jax.Array:
    """The stacks of all processes, joined to one global array."""
    sharding = stacked_spec(x).sharding
    return jax.make_array_from_process_local_data(sharding, np.asarray(x))


def stacked_spec(like: Any) -> jax.ShapeDtypeStruct:
    """The spec of `stacks_of_all(like)`."""
    length, *rest = like.shape
    pieces = length // like.sharding.shard_shape(like.shape)[0]
    devices = [
        [d for d in jax.devices() if d.process_index == process][:pieces]
        for process in range(jax.process_count())
    ]
    mesh = Mesh(np.array(devices).reshape(-1), AXIS)
    sharding = NamedSharding(mesh, P(AXIS))
    shape = (length * jax.process_count(), *rest)
    return jax.ShapeDtypeStruct(shape, like.dtype, sharding=sharding)


def global_shape(like: Any) -> tuple[int, ...]:
    """The shape of an array over all processes, as integers."""
    is_own = is_stack(getattr(like, "sharding", None))
    return tuple((stacked_spec(like) if is_own else like).shape)


def own_rows(x: np.ndarray, like: Any) -> np.ndarray:
    """Of rows of all workers those of this process, where `like` has these alone."""
    if not is_stack(getattr(like, "sharding", None)):
        return x
    first = jax.process_index() * like.shape[0]
    return x[first : first + like.shape[0]]
