"""The packages we compare with; a test that needs an absent one is skipped."""

from collections.abc import Iterator
from typing import Any

import jax
import pytest


def _package(name: str) -> Any:
    reason = f"{name} is not installed: `make oracles`"
    return pytest.importorskip(name, reason=reason)


@pytest.fixture(scope="session")
def torch() -> Any:
    package = _package("torch")
    package.set_num_threads(1)  # more wait for each other where cores are busy
    return package


@pytest.fixture(scope="session")
def srrcomp() -> Any:
    return _package("srrcomp")


@pytest.fixture
def fedjax() -> Iterator[Any]:
    """With JAX's usual promotion: fedjax is written for it, our tests are strict."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield _package("fedjax")
