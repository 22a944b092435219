"""Methods for training loops under jit, whose arrays are sharded over a mesh."""

from jaxcomp.transforms.jit.data_parallel import Comm, DataParallel, data_parallel
from jaxcomp.transforms.jit.decentralised import (
    ChainState,
    Decentralised,
    decentralised,
)

__all__ = [
    "ChainState",
    "Comm",
    "DataParallel",
    "Decentralised",
    "data_parallel",
    "decentralised",
]
