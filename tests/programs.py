"""Compiled programs: kept on disk between tests and runs, in memory while there is room.

Nearly all the time of the tests is XLA's. What one test, process or run has compiled is
read from a folder by all others, however small it is.
"""

import os
from pathlib import Path

import jax
from jax._src import lru_cache

__all__ = ["children_only_read", "forget_when_many", "keep_on_disk"]

FOLDER = Path(__file__).resolve().parent.parent / ".pytest_cache" / "programs"
MOST_ON_DISK = 1e9  # bytes; programs of one state of the code take 50 MB
# Of one process. Programs of all tests together would take several times as much.
MOST_IN_MEMORY = 2e9

KEPT_IN = "JAX_COMPILATION_CACHE_DIR"
KEPT_FROM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def keep_on_disk() -> None:
    """Let jax keep every program in a folder, each of them whole or not at all.

    jax itself writes into the final file, where another process may read half a program.
    """
    # For processes that tests start; this one has imported jax already.
    folder = os.environ.setdefault(KEPT_IN, str(FOLDER))
    seconds = os.environ.setdefault(KEPT_FROM, "0")
    jax.config.update(KEPT_IN.lower(), folder)
    jax.config.update(KEPT_FROM.lower(), float(seconds))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _drop_the_oldest(Path(folder))

    def put(self: lru_cache.LRUCache, key: str, value: bytes) -> None:
        part = self.path / f"{key}.{os.getpid()}"
        part.write_bytes(value)
        part.replace(self.path / f"{key}{lru_cache._CACHE_SUFFIX}")

    lru_cache.LRUCache.put = put


def children_only_read() -> dict[str, str]:
    """The environment of a process that a test starts, and perhaps kills.

    It reads programs and keeps none: nobody makes its writing whole.
    """
    return {**os.environ, KEPT_FROM: "1e9"}


def forget_when_many() -> None:
    """Free the memory of compiled programs where it has become too much."""
    if _memory() > MOST_IN_MEMORY:
        jax.clear_caches()


def _drop_the_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*"), key=lambda file: file.stat().st_mtime)
    size = sum(file.stat().st_size for file in files)
    for file in files:
        if size <= MOST_ON_DISK:
            return
        size -= file.stat().st_size
        file.unlink()


def _memory() -> float:
    """Bytes that this process has in memory; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
