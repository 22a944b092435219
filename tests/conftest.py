"""Strictness for every test: devices before jax starts, strict promotion.

Eight virtual devices exist in the test process, so that mappers can be compared; the
library itself sets them up for users (see jaxcomp.parallel).

Most of the time of a test is XLA's. A program that another test, process or session
has compiled is read from a folder: a run that goes on after a kill compiles nothing.
"""

import os
from collections.abc import Iterator
from pathlib import Path

# Before jax is imported, here and in the processes that tests start.
PROGRAMS = Path(__file__).resolve().parent.parent / ".pytest_cache" / "programs"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

from jaxcomp import parallel

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
parallel.setup(workers=8)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Thousands of compiled programs in memory would take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
