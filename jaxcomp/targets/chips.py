"""The accelerators that programs can be compiled for, with the facts XLA asks for."""

from typing import NamedTuple

__all__ = ["GPUS", "TPUS", "Gpu", "Tpu", "gpu_text"]


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
