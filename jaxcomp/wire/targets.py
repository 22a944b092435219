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
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from jaxcomp import parallel
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, check, suggest
from jaxcomp.core.types import Tree
from jaxcomp.parallel.placing import by_axis, partition
from jaxcomp.wire import KINDS, Collective, collectives
from jaxcomp.wire.program import (
    ENTRY,
    Instruction,
    called,
    computations,
    header_of,
    operands,
    parsed,
    program_text,
    trip_count,
)


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
    "b200": Gpu(
        "NVIDIA B200",
        capability=(10, 0),
        cores=148,
        units_per_core=128,
        clock_ghz=1.965,
        memory=191_514_411_008,
        bandwidth=7_672_320_000_000,
        l2_cache=132_644_864,
        shared_per_core=228 << 10,
    ),
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        cores=132,
        units_per_core=128,
        clock_ghz=1.98,
        memory=84_942_979_072,
        bandwidth=3_352_320_000_000,
        l2_cache=50 << 20,
        shared_per_core=228 << 10,
    ),
    "h200": Gpu(
        "NVIDIA H200 141GB HBM3e",
        capability=(9, 0),
        cores=132,
        units_per_core=128,
        clock_ghz=1.98,
        memory=151_397_597_184,
        bandwidth=4_800_000_000_000,
        l2_cache=50 << 20,
        shared_per_core=228 << 10,
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


# Instructions for which nothing is started: they name memory that exists already.
FREE = frozenset(
    (
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "tuple",
    )
)
_PRODUCTS = {"dot": "product", "convolution": "convolution"}
_LIBRARIES = {
    "__cudnn$conv": "convolution",
    "__cublas$": "product",
    "__triton_gemm": "product",
}


class Event(NamedTuple):
    """One piece of work that the program starts, or a collective that it waits for."""

    # A collective of `wire.KINDS`, with "-start" and "-done" if the program goes on in
    # between; "convolution", "product", "loop", or "other".
    kind: str
    name: str  # of the instruction
    source: str  # what it was traced from, such as "jit(step)/transpose(jvp(f))/dot"

    @property
    def is_backward(self) -> bool:
        """Whether it computes a gradient."""
        return "transpose(" in self.source


class Overlap(NamedTuple):
    """How much of the backward pass can run beside the first message."""

    behind: int  # products and convolutions that start after the first collective
    products: int  # all products and convolutions of the backward pass


def overlap(order: Iterable[Event]) -> Overlap:
    """Count the backward pass before and after the first collective's start.

    Example:
      >>> gradient = "transpose(jvp(f))/dot_general"
      >>> events = [
      ...     Event("product", "a", gradient),
      ...     Event("all-gather-start", "b", ""),
      ...     Event("product", "c", gradient),
      ...     Event("all-gather-done", "d", ""),
      ... ]
      >>> overlap(events)
      Overlap(behind=1, products=2)
    """
    has_begun, behind, products = False, 0, 0
    for event in order:
        has_begun |= event.kind.removesuffix("-start") in KINDS
        if event.kind in _PRODUCTS.values() and event.is_backward:
            behind += has_begun
            products += 1
    return Overlap(behind, products)


def order_of(bodies: dict[str, list[str]]) -> list[Event]:
    """What a program starts, in this order; a loop is one event.

    Args:
      bodies: from `wire.text.computations`, of a program that XLA has scheduled.
    """
    return list(_events(ENTRY, bodies))


def _events(name: str, bodies: dict[str, list[str]]) -> Iterator[Event]:
    for line in bodies[name]:
        found = parsed(line)
        if not found or found.operation in FREE:
            continue
        if found.operation in ("call", "conditional"):
            for callee in called(line):
                yield from _events(callee, bodies)
            continue
        kind = _kind(found, line, bodies)
        if kind != "wait":
            yield Event(kind, found.name, _source(line))


def _kind(found: Instruction, line: str, bodies: dict[str, list[str]]) -> str:
    operation = found.operation
    if operation.removesuffix("-start").removesuffix("-done") in KINDS:
        return operation
    if operation == "while":
        return "loop"
    if operation in ("async-start", "async-done", "async-update"):
        return _of_wrapped(operation, line, bodies)
    if operation.endswith(("-done", "-update")):
        return "wait"
    if operation == "custom-call":
        for target, kind in _LIBRARIES.items():
            if f'custom_call_target="{target}' in line:
                return kind
        return "other"
    if operation == "fusion":
        inside = [parsed(part) for name in called(line) for part in bodies[name]]
        kinds = {_PRODUCTS.get(part.operation) for part in inside if part} - {None}
        return min((kind for kind in kinds if kind), default="other")
    return _PRODUCTS.get(operation, "other")


def _of_wrapped(operation: str, line: str, bodies: dict[str, list[str]]) -> str:
    """The kind of an asynchronous call: a collective's, if it wraps one."""
    end = operation.removeprefix("async")
    named = line.partition("calls=")[2].partition(",")[0].strip().lstrip("%")
    for part in map(parsed, bodies.get(named, [])):
        if part and part.operation in KINDS:
            return part.operation + end
    return "other" if end == "-start" else "wait"


def _source(line: str) -> str:
    return line.partition('op_name="')[2].partition('"')[0]


_CONTROL = ("while", "conditional", "call")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


def memory_traffic(program: Any) -> int:
    """Bytes that the kernels of a program read and write, if no cache holds any.

    Each kernel reads its operands and writes its results, whole. One that takes a few
    elements of an array counts as if it read all of them, so that this is an upper
    bound for the memory, and collectives are not in it. The body of a loop counts as
    often as the program says, or once where it does not.

    Args:
      program: from `targets.compiled`, or its text.

    Example:
      >>> text = '''HloModule m
      ...
      ... ENTRY %main {
      ...   %x = f32[8]{0} parameter(0)
      ...   ROOT %y = f32[8]{0} negate(%x)
      ... }'''
      >>> memory_traffic(text)
      64
    """
    return _traffic(ENTRY, computations(program_text(program)))


def _traffic(name: str, bodies: dict[str, list[str]]) -> int:
    found = [(line, part) for line in bodies[name] if (part := parsed(line))]
    shapes = {part.name: part.shape for _, part in found}
    total = 0
    for line, part in found:
        operation = part.operation
        if operation in FREE or operation.endswith(("-done", "-update")):
            continue
        if operation.removesuffix("-start") in KINDS:
            continue
        if operation in _CONTROL:
            inside = [_traffic(callee, bodies) for callee in called(line)]
            if operation == "conditional":
                total += max(inside)
            else:
                total += sum(inside) * (trip_count(line) or 1)
            continue
        given = [o.shape or shapes.get(o.name, "") for o in operands(part.rest)]
        total += sum(map(_bytes, [part.shape, *given]))
    return total


def _bytes(shape: str) -> int:
    """Bytes of an array or a tuple, as a program writes its shape.

    Example:
      >>> _bytes("(f32[2,3]{1,0}, pred[8])"), _bytes("u4[8]"), _bytes("token[]")
      (32, 4, 0)
    """
    bits = 0
    for kind, width, sides in _ARRAY.findall(shape):
        if kind != "pred" and not width:
            continue
        count = math.prod(int(side) for side in sides.split(",") if side)
        bits += count * (8 if kind == "pred" else int(width))
    return -(-bits // 8)


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
    text = program_text(program)
    header_of(text)
    bodies = computations(text)
    launches, open_loops = _launches(ENTRY, bodies)
    return Program(
        collectives=collectives(text),
        launches=launches,
        open_loops=open_loops,
        memory=None if isinstance(program, str) else _memory(program),
        order=order_of(bodies),
    )


def _launches(name: str, bodies: dict[str, list[str]]) -> tuple[int, tuple[str, ...]]:
    """Launches of a computation, and its loops of unknown length."""
    count: int = 0
    open_loops: tuple[str, ...] = ()
    for line in bodies[name]:
        found = parsed(line)
        if not found or found.operation in FREE:
            continue
        operation = found.operation
        if operation.endswith(("-done", "-update")):
            continue
        if operation.removesuffix("-start") in KINDS:
            continue
        if operation not in ("while", "conditional", "call", "async-start"):
            count += 1
            continue
        inside = {callee: _launches(callee, bodies) for callee in called(line)}
        each = [launches for launches, _ in inside.values()]
        open_loops += tuple(loop for _, loops in inside.values() for loop in loops)
        if operation == "conditional":  # one branch runs; the dearest counts
            count += max(each)
        elif operation == "while" and (rounds := trip_count(line)) is not None:
            count += rounds * inside[_body_of(line)][0]  # nothing is asked in between
        else:
            open_loops += (found.name,) if operation == "while" else ()
            count += sum(each)
    return count, open_loops


def _body_of(loop: str) -> str:
    """Name of the computation that a loop repeats."""
    return loop.partition("body=")[2].partition(",")[0].strip().lstrip("%")


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
