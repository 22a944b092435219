"""Compile a step for accelerators that are not here, and read what it would cost.

    target = targets.make("a100", hosts=2, devices=8)
    mapped = parallel.map_step(step, target.workers, in_axes=0, out_axes=0)
    program = targets.read(targets.compiled(mapped, target, targets.specs(x, target)))

XLA's compiler for GPUs and TPUs runs on any CPU. Its program says which collectives
send how many bytes, how many kernels are started, how much memory they need and in
which order they run. How long they take it does not say.
"""

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxcomp import parallel
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, check, suggest
from jaxcomp.core.types import Tree
from jaxcomp.parallel.placing import specs_of
from jaxcomp.wire import program as hlo
from jaxcomp.wire.bytes import Collective, collectives
from jaxcomp.wire.program import Event as Event
from jaxcomp.wire.program import Overlap as Overlap
from jaxcomp.wire.program import memory_traffic as memory_traffic
from jaxcomp.wire.program import overlap as overlap


class Gpu(NamedTuple):
    """What XLA asks about a GPU before it compiles for it."""

    title: str
    capability: tuple[int, int]  # of CUDA
    cores: int  # streaming multiprocessors
    units_per_core: int  # for float32
    clock_ghz: float
    memory: int  # bytes
    bandwidth: int  # of the memory, in bytes a second
    l2_cache: int  # bytes
    shared_per_core: int  # bytes of shared memory


class Tpu(NamedTuple):
    """A generation of TPUs whose chips stand in a plane."""

    title: str
    largest: int  # number of chips


_H100 = Gpu(
    "NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    cores=132,
    units_per_core=128,
    clock_ghz=1.98,
    memory=84_942_979_072,
    bandwidth=3_352_320_000_000,
    l2_cache=50 << 20,
    shared_per_core=228 << 10,
)
GPUS = {
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        cores=108,
        units_per_core=64,
        clock_ghz=1.41,
        memory=85_100_068_864,
        bandwidth=2_039_040_000_000,
        l2_cache=40 << 20,
        shared_per_core=164 << 10,
    ),
    "b200": _H100._replace(
        title="NVIDIA B200",
        capability=(10, 0),
        cores=148,
        clock_ghz=1.965,
        memory=191_514_411_008,
        bandwidth=7_672_320_000_000,
        l2_cache=132_644_864,
    ),
    "h100": _H100,
    "h200": _H100._replace(
        title="NVIDIA H200 141GB HBM3e",
        memory=151_397_597_184,
        bandwidth=4_800_000_000_000,
    ),
}
TPUS = {"v5e": Tpu("TPU v5e", 256), "v6e": Tpu("TPU v6e", 256)}


def gpu_text(gpu: Gpu) -> str:
    """The facts as XLA reads them: the text of a `GpuTargetConfigProto`.

    What is equal for all GPUs of these generations is written here alone. No version of
    CUB is named: with one, jax 0.10.2 plans CUB's sorts, and asks a GPU for their
    working memory. Without, XLA sorts by kernels of its own, in as many instructions.
    """
    major, minor = gpu.capability
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 48 << 10,
        # A block may have all of a core's but one KiB, which the driver keeps.
        "shared_memory_per_block_optin": gpu.shared_per_core - 1024,
        "shared_memory_per_core": gpu.shared_per_core,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.units_per_core,
        "clock_rate_ghz": gpu.clock_ghz,
        "memory_bandwidth": gpu.bandwidth,
        "l2_cache_size": gpu.l2_cache,
        "device_memory_size": gpu.memory,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
    }
    lines = "\n".join(f"  {name}: {value}" for name, value in facts.items())
    return (
        f"gpu_device_info {{\n{lines}\n"
        f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 8 }\n"
        f'device_description_str: "{gpu.title}"\n'
    )


class Memory(NamedTuple):
    """Bytes that a program needs on each device."""

    arguments: int
    results: int
    reused: int  # results that lie where donated arguments lay
    temporary: int

    @property
    def peak(self) -> int:
        return self.arguments + self.results - self.reused + self.temporary


class Program(NamedTuple):
    """What one device does in one execution of a compiled program."""

    collectives: list[Collective]
    # Kernels and copies that the host starts, those of loops times their rounds. One
    # round is counted of a loop of unknown length. Collectives are not among them.
    launches: int
    # Names of loops whose number of rounds follows from data: after each round the host
    # waits for the device, to learn whether there is another.
    open_loops: tuple[str, ...]
    memory: Memory | None  # None if only the text was given
    order: list[Event]


def read(program: Any) -> Program:
    """Read a compiled program.

    Args:
      program: from `compiled`, or of any `jitted.lower(...).compile()`, or its text.

    Raises:
      WireError: the text is not that of a compiled program, or a collective cannot be
        read.
    """
    text = hlo.program_text(program)
    hlo.header_of(text)
    bodies = hlo.computations(text)
    return Program(
        collectives=collectives(text),
        launches=hlo.launches(bodies),
        open_loops=tuple(hlo.open_loops(bodies)),
        memory=None if isinstance(program, str) else _memory(program),
        order=list(hlo.order_of(bodies)),
    )


def _memory(program: Any) -> Memory:
    figures = getattr(program, "compiled", program).memory_analysis()
    return Memory(
        arguments=figures.argument_size_in_bytes,
        results=figures.output_size_in_bytes,
        reused=figures.alias_size_in_bytes,
        temporary=figures.temp_size_in_bytes,
    )


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
    return specs_of(tree, axis_tree, workers.size, workers.sharding)


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
