"""Strictness for every test: devices before jax starts, strict promotion.

Eight virtual devices exist in the test process, so that mappers can be compared; the
library itself sets them up for users (see jaxcomp.parallel).
"""

from collections.abc import Iterator

import jax
import pytest

from jaxcomp import parallel

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
parallel.setup(workers=8)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Thousands of compiled programs would take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
