"""Devices that nobody has to have: XLA compiles for them, and nothing can run."""

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from jaxcomp import parallel
from jaxcomp.base import Tree
from jaxcomp.errors import UserError
from jaxcomp.parallel.placing import by_axis, partition
from jaxcomp.specs import Count, check, suggest
from jaxcomp.targets.chips import GPUS, TPUS, gpu_text

__all__ = ["NAMES", "Target", "compiled", "make", "missing", "specs"]

NAMES = (*GPUS, *TPUS)
# XLA measures alternatives of a kernel where there is a GPU; here it has to guess.
_GPU_OPTIONS = {"xla_gpu_autotune_level": 0}
# libtpu would ask the network which TPU this machine is, complain that it is none, and
# lock out a second process.
_TPU_SETTINGS = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class Target(NamedTuple):
    """Devices of hosts, as the workers of a step that is compiled for them."""

    name: str  # one of NAMES
    title: str
    hosts: int
    devices: int  # of each host
    workers: parallel.Workers  # one for each device
    options: Mapping[str, Any]  # of the compiler

    @property
    def mesh(self) -> Mesh:
        assert self.workers.mesh is not None  # `make` refuses the mapper without one
        return self.workers.mesh

    def __str__(self) -> str:
        where = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{self.workers.size} x {self.title} ({where})"


def make(
    name: str,
    hosts: int = 1,
    devices: int = 8,
    mapper: str = "shard_map",
    axis: str = parallel.AXIS,
) -> Target:
    """Make a target by its name. No accelerator and no driver is needed.

    Args:
      name: of the accelerator, one of `NAMES`.
      hosts: their number.
      devices: of each host.
      mapper: "shard_map" or "pmap".
      axis: name of the mapped axis.

    Raises:
      UserError: an unknown name, a wrong number, or a compiler that is not installed.
        The message says which are valid, or what to install.
    """
    if name not in NAMES:
        raise UserError(f"unknown target {name!r}. {suggest(name, NAMES)}")
    check(Count, "hosts", hosts)
    check(Count, "devices", devices)
    if mapper not in ("shard_map", "pmap"):
        message = (
            f"mapper {mapper!r} has no program for several devices: a target takes "
            "'pmap' or 'shard_map'"
        )
        raise UserError(message)
    if reason := missing(name):
        raise UserError(reason)
    found = _gpus(name, hosts, devices) if name in GPUS else _tpus(name, hosts, devices)
    workers = parallel.Workers(mapper, len(found), axis, Mesh(found, (axis,)))
    return Target(
        name,
        title=GPUS[name].title if name in GPUS else TPUS[name].title,
        hosts=hosts,
        devices=devices,
        workers=workers,
        options=_GPU_OPTIONS if name in GPUS else {},
    )


def missing(name: str) -> str:
    """Why nothing can be compiled for a target, and what to install; "" if it can."""
    plugins = (
        ("jax_cuda12_plugin", "jax_cuda13_plugin") if name in GPUS else ("libtpu",)
    )
    if any(importlib.util.find_spec(plugin) for plugin in plugins):
        return ""
    kind, extra = ("NVIDIA GPUs", "cuda12") if name in GPUS else ("TPUs", "tpu")
    return (
        f"target {name!r} needs XLA's compiler for {kind}, which is not installed: "
        f'pip install "jax[{extra}]=={jax.__version__}". It needs no {kind[:-1]} '
        "and no driver"
    )


def specs(tree: Tree, target: Target, axis_tree: Any = 0) -> Tree:
    """Shapes of the global arrays of a mapped step, from those of one worker.

    Args:
      tree: arrays or specs of one worker.
      target: where the arrays would lie.
      axis_tree: a prefix tree with 0, where workers have an array each, or None, where
        all have the same. `parallel.axes(state)` gives that of a training state.
    """
    workers = target.workers

    def on_devices(axis: int | None, x: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(target.mesh, partition(axis, workers.device_axis))
        shape = x.shape if axis is None else (workers.size, *x.shape)
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

    return by_axis(on_devices, axis_tree, tree)


def compiled(mapped: Any, target: Target, *args: Any, **options: Any) -> Any:
    """Compile a mapped step for a target.

    Args:
      mapped: from `parallel.map_step` with `target.workers`, or any function with
        `lower` that is mapped over the devices of `target.mesh`.
      target: from `make`.
      *args: from `specs`.
      **options: of the compiler, such as `xla_gpu_graph_level=0`.
    """
    lowered = mapped.lower(*args)
    # jax would keep the program on disk, from where it cannot be read without a device.
    with _nothing_kept():
        return lowered.compile(compiler_options={**target.options, **options})


@contextlib.contextmanager
def _nothing_kept() -> Iterator[None]:
    """No program that is compiled in here goes into jax's persistent cache."""
    least = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, least)
    jax.config.update(least, math.inf)
    try:
        yield
    finally:
        jax.config.update(least, before)


def _gpus(name: str, hosts: int, devices: int) -> np.ndarray:
    topology = topologies.get_topology_desc(
        name,
        platform="cuda",
        target_config=gpu_text(GPUS[name]),
        topology=f"1x{hosts}x{devices}",
    )
    return np.array(topology.devices)


def _tpus(name: str, hosts: int, devices: int) -> np.ndarray:
    """Chips of hosts, each of which holds a rectangle of the plane."""
    count, most = hosts * devices, TPUS[name].largest
    own, whole = _rectangle(devices), _rectangle(count)
    fits = all(side % part == 0 for side, part in zip(whole, own, strict=True))
    # A power of two shares no bit with the number before it.
    if devices not in (1, 4, 8) or count & (count - 1) or count > most or not fits:
        message = (
            f"{hosts} hosts of {devices} chips are no {TPUS[name].title}: a host has "
            f"1, 4 or 8 chips, and all together are 1, 4, 8, 16, 32, ... up to {most}"
        )
        raise UserError(message)
    for setting, value in _TPU_SETTINGS.items():
        os.environ.setdefault(setting, value)
    topology = topologies.get_topology_desc(
        f"{name}:{whole[0]}x{whole[1]}",
        platform="tpu",
        chips_per_host_bounds=[*own, 1],
    )
    return np.array(topology.devices)


def _rectangle(chips: int) -> tuple[int, int]:
    """The sides of a plane of chips: both are powers of two, as equal as they can be.

    Example:
      >>> _rectangle(8), _rectangle(16)
      ((2, 4), (4, 4))
    """
    power = chips.bit_length() - 1
    short = 1 << power // 2
    return short, chips // short
