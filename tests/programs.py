"""Compiled programs: all are kept on disk, and in memory while there is room.

Nearly all the time of the tests is XLA's. What one test, process or run has compiled is
read from a folder by all others, however small it is.
"""

import ctypes
import gc
import os
from pathlib import Path

import jax
from jax._src import lru_cache

FOLDERS = Path(__file__).resolve().parent.parent / ".pytest_cache"
MOST_ON_DISK = 1e9  # bytes; programs of one state of the code take 50 MB
# Of one process: a sixth of the machine. What is forgotten is traced and read again.
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MOST_IN_MEMORY = max(2e9, MACHINE / 6)
# Machine code that compiles in half of the time. What runs once need not be fast, and
# parts of a program that are compiled side by side cost a quarter more than one.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)


def compile_quickly() -> None:
    """Let XLA optimise little, here and in the processes that tests start.

    The slow tier and the tests on the newest jax compile as users' programs do: their
    `make` targets set XLA_FLAGS to nothing. Call it before jax touches a device.
    """
    os.environ.setdefault("XLA_FLAGS", QUICKLY)


def keep_on_disk() -> None:
    """Let jax keep every program in a folder, each of them whole or not at all.

    jax itself writes into the final file, where another process may read half of it.
    """
    mine, theirs = FOLDERS / "programs", FOLDERS / "programs_of_children"
    jax.config.update("jax_compilation_cache_dir", str(mine))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # Processes that tests start: some are killed while they write, and a program that
    # cannot be read is a mere warning there.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(theirs)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _drop_the_oldest(mine)
        _drop_the_oldest(theirs)

    def put(self: lru_cache.LRUCache, key: str, value: bytes) -> None:
        part = self.path / f"{key}.{os.getpid()}"
        part.write_bytes(value)
        part.replace(self.path / f"{key}{lru_cache._CACHE_SUFFIX}")

    lru_cache.LRUCache.put = put


def collect_less_often() -> None:
    """Traces make many objects that live on; looking at them took a tenth of a run."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def forget_when_many() -> None:
    """Free the memory of compiled programs where it has become too much."""
    if _memory() < MOST_IN_MEMORY:
        return
    jax.clear_caches()
    gc.collect()  # programs hold each other
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc keeps for itself what was freed, and so would count it
        trim(0)


def _drop_the_oldest(folder: Path) -> None:
    whole = folder.glob(f"*{lru_cache._CACHE_SUFFIX}")
    found = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in whole)
    size = sum(bytes_ for _, bytes_, _ in found)
    for _, bytes_, file in found:
        if size <= MOST_ON_DISK:
            return
        size -= bytes_
        file.unlink(missing_ok=True)


def _memory() -> float:
    """Bytes that this process has in memory; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
