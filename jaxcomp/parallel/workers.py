"""The workers of a run: devices, real or virtual, of one or several processes."""

import os
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxcomp._version import __version__
from jaxcomp.errors import UserError
from jaxcomp.parallel.cluster import find_cluster
from jaxcomp.parallel.devices import (
    PLATFORMS,
    check_platform,
    pick,
    use_deterministic_kernels,
)
from jaxcomp.parallel.joining import join, join_seconds, peer_seconds
from jaxcomp.parallel.messages import check_same

__all__ = ["AXIS", "MAPPERS", "Workers", "setup", "throttle"]

AXIS = "workers"
MAPPERS = ("pmap", "shard_map", "vmap")


class Workers(NamedTuple):
    """The workers of a run and their devices."""

    mapper: str
    size: int  # their number, over all processes
    axis: Any  # its name, or a tuple of several
    mesh: Mesh | None  # one device for each worker; None under vmap

    @property
    def local(self) -> slice:
        """Which workers this process holds."""
        if self.mesh is None:
            return slice(0, self.size)
        mine = [d.process_index == jax.process_index() for d in self.mesh.devices.flat]
        return slice(mine.index(True), mine.index(True) + sum(mine))


def setup(
    workers: int | None = None,
    mapper: str = "pmap",
    axis: str = AXIS,
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    platform: str = "",
    deterministic: bool = False,
) -> Workers:
    """Prepare devices for a number of workers. Call it before anything touches jax.

    On a CPU it makes one virtual device for each worker. It also raises XLA's number of
    threads, because with few threads several virtual devices can block each other.

    Args:
      workers: number over all processes; default: the devices that exist.
      mapper: "pmap", "shard_map" or "vmap".
      axis: name of the mapped axis.
      coordinator: "host:port" of process 0, for several processes, or "auto": jax
        finds it. Default: the environment; see docs/cluster.md.
      processes: their number; default: JAXCOMP_PROCESSES.
      process: index of this one; default: JAXCOMP_PROCESS.
      platform: "cpu", "gpu" or "tpu" refuses all others; "" takes what there is.
      deterministic: let programs give the same bits every time they run on GPUs.

    Example:
      >>> setup(workers=16, mapper="vmap").size
      16
    """
    if mapper not in MAPPERS:
        raise UserError(f"unknown mapper {mapper!r}. Valid: {', '.join(MAPPERS)}")
    if platform not in PLATFORMS:
        raise UserError(f"unknown platform {platform!r}. Valid: {PLATFORMS}")
    if workers is not None and workers < 1:
        raise UserError(f"workers is at least 1, not {workers}")
    if deterministic:
        use_deterministic_kernels()
    processes = _join_others(coordinator, processes, process, mapper, workers)
    if mapper != "vmap":
        # Without a number of workers, the environment says how many devices there are.
        asked = getattr(jax.config, "jax_num_cpu_devices", 0)
        share = workers // processes if workers else asked
        if share > 0:
            _make_cpu_devices(share)
    check_platform(platform)
    if mapper == "vmap":
        return Workers(mapper, workers or 1, axis, None)
    devices = jax.devices()
    count = workers or len(devices)
    if count > len(devices):
        raise UserError(
            f"{count} workers need {count} devices and there are {len(devices)}. "
            f"Use mapper='vmap' to simulate them on one device, or call "
            "jaxcomp.parallel.setup before anything else touches jax"
        )
    return Workers(mapper, count, axis, Mesh(pick(devices, count, processes), (axis,)))


def throttle(arrays: Any) -> None:
    """Wait for arrays on a CPU, where programs of virtual devices must not queue up.

    Other devices take programs from their queues, and nothing waits for them here.
    """
    if jax.default_backend() == "cpu":
        jax.block_until_ready(arrays)


def _join_others(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    mapper: str,
    workers: int | None,
) -> int:
    """Connect to the other processes if there are any; returns their number."""
    if jax.distributed.is_initialized():
        _check_divides(workers, jax.process_count())
        return jax.process_count()
    cluster = find_cluster(os.environ, coordinator, processes, process)
    if cluster is None:
        return 1
    if mapper == "vmap":
        raise UserError("mapper 'vmap' simulates workers in one process; use 'pmap'")
    _check_divides(workers, cluster.processes or 1)
    count = join(cluster, join_seconds(os.environ), peer_seconds(os.environ))
    check_same({"jaxcomp": __version__, "jax": jax.__version__})
    _check_divides(workers, count)
    return count


def _check_divides(workers: int | None, processes: int) -> None:
    if workers is not None and workers % processes:
        raise UserError(f"{workers} workers do not divide over {processes} processes")


def _make_cpu_devices(count: int) -> None:
    """Virtual CPU devices and enough threads, if the backend has not started yet.

    With few cores, programs of several virtual devices wait for each other in a thread
    pool that is too small to run them all, and XLA aborts the process. Two threads for
    each device were enough in all cases seen. XLA reads NPROC once, when it starts.
    """
    threads = max(2 * count, os.cpu_count() or 1, int(os.environ.get("NPROC", 0)))
    os.environ["NPROC"] = str(threads)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # the backend runs already; `setup` compares the devices it has
