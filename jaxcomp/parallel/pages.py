"""Keep memory pages on a CPU host, where a fresh one costs more than arithmetic.

XLA allocates the results of every step anew. The C library returns large blocks to the
system and asks for them again, and the system clears each page before it is used: for a
vector of 100 MB that takes several times as long as the pass that writes it.
"""

import ctypes
import os
from collections.abc import Mapping

__all__ = ["keep_pages"]

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
