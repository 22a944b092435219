"""Strictness for every test: devices before jax starts, strict promotion.

Eight virtual devices exist in the test process, so that mappers can be compared; the
library itself sets them up for users (see jaxcomp.parallel).
"""

import faulthandler
from collections.abc import Iterator

import jax
import pytest

from jaxcomp import parallel
from tests import programs
from tests.costs import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

programs.compile_quickly()
programs.keep_on_disk()
programs.collect_less_often()
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
parallel.setup(workers=8)


TIME_LIMIT = 240  # seconds, of what may hang
# Minutes to half an hour each.
LONGEST = ("test_cifar10.py", "test_claims.py")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """The longest come first, divided over the shares that workers begin with."""
    longest = [item for item in items if item.path.name in LONGEST]
    others = [item for item in items if item.path.name not in LONGEST]
    count = getattr(config, "workerinput", {}).get("workercount", 1)
    borders = [k * len(others) // count for k in range(count + 1)]
    items[:] = [
        item
        for k in range(count)
        for item in longest[k::count] + others[borders[k] : borders[k + 1]]
    ]


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    yield
    programs.forget_when_many()


@pytest.fixture
def in_time() -> Iterator[None]:
    """Ends this process where workers wait for each other for ever.

    A thread that waits in a collective hears no signal.
    """
    faulthandler.dump_traceback_later(TIME_LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
