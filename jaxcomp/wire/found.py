"""The type of a collective in a program, and the error if it cannot be read."""

from typing import NamedTuple

__all__ = ["KINDS", "PAIRWISE", "Collective", "Groups", "WireError"]

# Bytes that leave a worker for each byte that it hands to the collective, if this is
# run as a ring algorithm of n workers.
KINDS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}

PAIRWISE = {"all-to-all", "ragged-all-to-all"}  # each to each: no ring forwards them

Groups = tuple[tuple[int, ...], ...]


class WireError(ValueError):
    """A collective of a program whose bytes cannot be determined."""


class Collective(NamedTuple):
    """One collective operation of a program."""

    kind: str  # a name in KINDS
    nbytes: int  # that one worker hands over each time it is run
    workers: int  # size of the largest group
    times: int = 1  # how often it is run in one execution of the program
    # The devices of each group, as places among the program's devices; for a
    # permutation the pairs of source and target.
    groups: Groups = ()
    tensors: int = 1  # that are handed over together, as parts of nbytes
