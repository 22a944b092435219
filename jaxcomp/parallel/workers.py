"""Workers and their devices, and what a process needs before it computes."""

import ctypes
import functools
import os
import platform as machine
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxcomp._version import __version__
from jaxcomp.core.errors import UserError
from jaxcomp.parallel import cluster as clusters
from jaxcomp.parallel.collectives import Lanes

AXIS = "workers"
LANES = "lanes"  # the workers of a device, where it has several
MAPPERS = ("pmap", "shard_map", "vmap")
PLATFORMS = ("", "cpu", "gpu", "tpu")
_MOST_DEVICES = 1024  # of one CPU; each has threads and memory of its own


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

    def sharding(self, axis: int | None) -> Any:
        """Where arrays lie that have an axis of workers, 0, or have none."""
        if self.mesh is None:
            return SingleDeviceSharding(jax.local_devices()[0])
        return NamedSharding(self.mesh, partition(axis, self.device_axis))

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


def partition(axis: int | None, name: Any) -> PartitionSpec:
    """An axis of 0 or None as a `PartitionSpec`."""
    return PartitionSpec() if axis is None else PartitionSpec(name)


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
    cluster = clusters.find_cluster(os.environ, coordinator, processes, process)
    if cluster is None:
        return 1
    if mapper == "vmap":
        raise UserError("mapper 'vmap' simulates workers in one process; use 'pmap'")
    check_divides(cluster.processes or 1)
    limits = [clusters.time_limit(flag, os.environ) for flag in clusters.TIME_LIMITS]
    count = clusters.join(cluster, *limits)
    clusters.check_same({"jaxcomp": __version__, "jax": jax.__version__})
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


def pick(devices: list[Any], count: int, processes: int) -> np.ndarray:
    """`count` devices, equally many of each process and in its order.

    Raises:
      UserError: a process has fewer; says which, and on which host this one runs.
    """
    found = [
        [d for d in devices if d.process_index == index] for index in range(processes)
    ]
    share = -(-count // processes)
    few = [index for index, mine in enumerate(found) if len(mine) < share]
    if few:
        listed = ", ".join(f"{i} has {len(mine)}" for i, mine in enumerate(found))
        raise UserError(
            f"process {few[0]} has {len(found[few[0]])} devices, and {count} workers "
            f"on {processes} processes need {share} of each: process {listed}; this is "
            f"process {jax.process_index()} on {machine.node()}. CUDA_VISIBLE_DEVICES "
            "and JAX_LOCAL_DEVICE_IDS say what a process may see"
        )
    return np.array([device for mine in found for device in mine[:share]])


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


def has_started() -> bool:
    """Whether jax has looked for devices; settings of them come too late then."""
    name = "jax_num_cpu_devices"
    count = getattr(jax.config, name)
    try:
        jax.config.update(name, count + 1)  # refused once devices are there
    except RuntimeError:
        return True
    jax.config.update(name, count)
    return False


_WAYS = {
    "cpu": "set platform before anything else touches jax",
    "gpu": "Install jax[cuda12] or jax[cuda13], and look at nvidia-smi, "
    "CUDA_VISIBLE_DEVICES and JAX_PLATFORMS",
    "tpu": "Install jax[tpu], and look at JAX_PLATFORMS",
}


def check_platform(platform: str) -> None:
    """Refuse devices of another platform; jax itself falls back to the CPU.

    Args:
      platform: one of `PLATFORMS`; "" takes what there is.
    """
    if not platform:
        return
    if platform == "cpu" and not has_started():
        jax.config.update("jax_platforms", "cpu")
    try:
        found = f"found {jax.default_backend()} devices"
        if jax.default_backend() == platform:
            return
    except RuntimeError as error:
        found = f"could not start: {error}"
    raise UserError(
        f"platform {platform!r} is asked for, and jax {found}. {_WAYS[platform]}; or "
        "set platform to '' to take what there is"
    )


# Sums by atomic additions are left out, and no kernel is chosen by how fast it was.
DETERMINISTIC = {"xla_gpu_deterministic_ops": "true", "xla_gpu_autotune_level": "0"}


def use_deterministic_kernels() -> None:
    """Let XLA compile programs that give the same bits every time they run on GPUs.

    CPU programs do so anyway. XLA reads XLA_FLAGS once, when it starts.

    Raises:
      UserError: XLA runs already without the flags, or XLA_FLAGS says the opposite.
    """
    words = shlex.split(os.environ.get("XLA_FLAGS", ""))
    parts = [word.removeprefix("--").partition("=") for word in words]
    given = {name: value for name, _, value in parts}
    for name, value in DETERMINISTIC.items():
        if given.get(name, value) != value:
            raise UserError(
                f"deterministic needs --{name}={value}, and XLA_FLAGS has "
                f"--{name}={given[name]}: remove one of the two"
            )
    missing = [
        f"--{name}={value}"
        for name, value in DETERMINISTIC.items()
        if name not in given
    ]
    if not missing:
        return
    if not has_started():
        os.environ["XLA_FLAGS"] = " ".join([*words, *missing])
    elif jax.default_backend() == "gpu":
        raise UserError(
            "deterministic comes too late, because jax has started already: set "
            f"XLA_FLAGS='{' '.join(missing)}' in the environment"
        )


def throttle(arrays: Any) -> None:
    """Wait for arrays on a CPU, where programs of virtual devices must not queue up.

    Other devices take programs from their queues, and nothing waits for them here.
    """
    if jax.default_backend() == "cpu":
        jax.block_until_ready(arrays)


# Names and values of glibc's malloc.h. With no limit on the heap's free end, and no
# blocks outside of the one heap, what is freed stays with the process.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_SETTINGS = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _ARENA_MAX: 1}
# Whoever sets one of these has chosen already.
_CHOSEN = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


def keep_pages(variables: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep the memory that it frees; call it before large arrays.

    It makes a step on a CPU faster, the more so the larger the model, and the process
    takes about a tenth more memory, which it returns at its end. Nothing changes where
    the C library is not glibc, or where the environment chooses an allocator:
    `MALLOC_ARENA_MAX=8` keeps glibc as it is.

    Args:
      variables: of the environment.

    Returns:
      Whether the memory is kept.

    Example:
      >>> keep_pages({"LD_PRELOAD": "libjemalloc.so.2"})
      False
    """
    if any(name.startswith(_CHOSEN) and value for name, value in variables.items()):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return all(set_option(name, value) for name, value in _SETTINGS.items())
