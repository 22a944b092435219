"""The workers of a run: devices, real or virtual, of one or several processes."""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxcomp._version import __version__
from jaxcomp.errors import UserError
from jaxcomp.lanes import Lanes
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
LANES = "lanes"  # the workers of a device, where it has several
_MOST_DEVICES = 1024  # of one CPU; each has threads and memory of its own
MAPPERS = ("pmap", "shard_map", "vmap")


class Workers(NamedTuple):
    """The workers of a run and their devices; worker w is on device w // per_device."""

    mapper: str
    size: int  # their number, over all processes
    axis: Any  # its name, a tuple of several, or `Lanes`; what collectives take
    mesh: Mesh | None  # of the devices; None under vmap
    per_device: int = 1  # workers on each device of the mesh

    @property
    def local(self) -> slice:
        """Which workers this process holds."""
        if self.mesh is None:
            return slice(0, self.size)
        mine = [d.process_index == jax.process_index() for d in self.mesh.devices.flat]
        first, count = mine.index(True), sum(mine)
        return slice(first * self.per_device, (first + count) * self.per_device)

    @property
    def device_axis(self) -> Any:
        """What of `axis` lies between devices: the name, or names, of the mesh."""
        return self.axis.devices if isinstance(self.axis, Lanes) else self.axis

    @property
    def devices(self) -> int:
        """How many devices they have; simulated ones count as if each had its own."""
        return self.size // self.per_device

    @property
    def hosts(self) -> int:
        """How many processes hold their devices."""
        devices = () if self.mesh is None else self.mesh.devices.flat
        return len({device.process_index for device in devices}) or 1

    @property
    def lengths(self) -> dict[Any, int]:
        """The mapped axes with their lengths."""
        if isinstance(self.axis, Lanes):
            return {self.axis.devices: self.devices, self.axis.lanes: self.per_device}
        return {self.axis: self.size}


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
    per_device: int = 1,
) -> Workers:
    """Prepare devices for a number of workers. Call it before anything touches jax.

    On a CPU it makes as many virtual devices as they need. It also raises XLA's number
    of threads, because with few threads several virtual devices can block each other.

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
      per_device: workers that share a device.

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
    _check_shared(workers, mapper, per_device)
    if deterministic:
        use_deterministic_kernels()
    divides = functools.partial(_check_divides, workers, per_device)
    processes = _join_others(coordinator, processes, process, mapper, divides)
    needed = None if workers is None else workers // per_device
    if mapper != "vmap":
        # Without a number of workers, the environment says how many devices there are.
        asked = getattr(jax.config, "jax_num_cpu_devices", 0)
        share = needed // processes if needed else asked
        if share > 0:
            _make_cpu_devices(share)
    check_platform(platform)
    if mapper == "vmap":
        return Workers(mapper, workers or 1, axis, None)
    devices = jax.devices()
    count = needed or len(devices)
    if count > len(devices):
        each = f", {per_device} on each," if per_device > 1 else ""
        raise UserError(
            f"{workers} workers{each} need {count} devices and there are "
            f"{len(devices)}. Use mapper='vmap' to simulate them on one device, or "
            "call jaxcomp.parallel.setup before anything else touches jax"
        )
    mesh = Mesh(pick(devices, count, processes), (axis,))
    whole = axis if per_device == 1 else Lanes(axis, LANES)
    return Workers(mapper, count * per_device, whole, mesh, per_device)


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
    check_divides: Callable[[int], None],
) -> int:
    """Connect to the other processes if there are any; returns their number."""
    if jax.distributed.is_initialized():
        check_divides(jax.process_count())
        return jax.process_count()
    cluster = find_cluster(os.environ, coordinator, processes, process)
    if cluster is None:
        return 1
    if mapper == "vmap":
        raise UserError("mapper 'vmap' simulates workers in one process; use 'pmap'")
    check_divides(cluster.processes or 1)
    count = join(cluster, join_seconds(os.environ), peer_seconds(os.environ))
    check_same({"jaxcomp": __version__, "jax": jax.__version__})
    check_divides(count)
    return count


def _check_divides(workers: int | None, per_device: int, processes: int) -> None:
    if workers is not None and workers % (processes * per_device):
        each = f" with {per_device} on each device" if per_device > 1 else ""
        raise UserError(
            f"{workers} workers{each} do not divide over {processes} processes"
        )


def _check_shared(workers: int | None, mapper: str, per_device: int) -> None:
    """Refuse several workers on a device where there cannot be so many."""
    if per_device == 1:
        return
    if per_device < 1:
        raise UserError(f"workers_per_device is at least 1, not {per_device}")
    if mapper == "vmap":
        raise UserError(
            f"workers_per_device={per_device} with mapper 'vmap', which has all "
            "workers on one device: set workers_per_device to 1, or mapper to "
            "'shard_map'"
        )
    if mapper == "pmap":
        raise UserError(
            f"workers_per_device={per_device} with mapper 'pmap', which takes one row "
            "of an array for each device and no more: set mapper to 'shard_map'"
        )
    if workers is not None and workers % per_device:
        nearest = per_device * max(1, round(workers / per_device))
        raise UserError(
            f"{workers} workers are no whole number of devices with {per_device} on "
            f"each: take a multiple of {per_device}, such as {nearest}"
        )


def _make_cpu_devices(count: int) -> None:
    """Virtual CPU devices and enough threads, if the backend has not started yet.

    With few cores, programs of several virtual devices wait for each other in a thread
    pool that is too small to run them all, and XLA aborts the process. Two threads for
    each device were enough in all cases seen. XLA reads NPROC once, when it starts.
    """
    if count > _MOST_DEVICES:
        most = f"a CPU is cut into {_MOST_DEVICES} devices at most, not {count}"
        raise UserError(f"{most}: mapper 'vmap' simulates any number on one")
    threads = max(2 * count, os.cpu_count() or 1, int(os.environ.get("NPROC", 0)))
    os.environ["NPROC"] = str(threads)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # the backend runs already; `setup` compares the devices it has
