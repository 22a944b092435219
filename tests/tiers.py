"""Which cases of a matrix run by default; the others are `slow` (make test-slow).

Nearly all the time of the tests is compiling. A case is slow when another one goes the
same way through what its test is about.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

# Where a test is about what surrounds a compressor, its kind of payload is what counts.
# A method that is not named here stands for itself, so a new one runs by default.
STANDS_FOR = {
    "top_k": ("block_top_k", "dgc_top_k", "qsgd_sparse"),
    "threshold": ("adaptive_threshold",),  # both report an overflow
    "qsgd": ("terngrad", "natural", "cast", "block_scaled", "eden"),
    "svd": ("atomo", "qsvd"),
}


def tiers(cases: Iterable[Any], quick: Callable[[Any], bool]) -> list[Any]:
    """Parameters of a test: the quick cases as they are, the others marked `slow`.

    Args:
      cases: one value each, or a tuple for several parameters; no set, whose order
        differs between the processes that share a run.
      quick: whether a case runs by default.
    """

    if isinstance(cases, set | frozenset):
        raise TypeError(f"the cases of a test need an order, not {cases!r}")

    def marked(case: Any) -> Any:
        values = case if type(case) is tuple else (case,)
        return pytest.param(*values, marks=() if quick(case) else pytest.mark.slow)

    return [marked(case) for case in cases]
