"""What is found in a program: its collectives, or that they cannot be read."""

from typing import NamedTuple

__all__ = ["KINDS", "Collective", "Groups", "WireError"]

# Bytes that leave a worker when the collective runs as a ring of n workers, for each
# byte that it hands over.
KINDS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}

Groups = tuple[tuple[int, ...], ...]


class WireError(ValueError):
    """The program holds a collective whose bytes cannot be told."""


class Collective(NamedTuple):
    """One collective operation of a program."""

    kind: str  # a name in KINDS
    nbytes: int  # what one worker hands over each time it runs
    workers: int  # size of the largest group
    times: int = 1  # how often one execution of the program runs it
    # Who talks with whom, by place among the program's devices; for a permutation
    # the pairs of source and target.
    groups: Groups = ()
