"""Methods for training loops under jit, whose arrays are sharded over a mesh."""

from jaxcomp.sharded.data_parallel import Comm, DataParallel, data_parallel
from jaxcomp.sharded.decentralised import ChainState, Decentralised, decentralised

__all__ = [
    "ChainState",
    "Comm",
    "DataParallel",
    "Decentralised",
    "data_parallel",
    "decentralised",
]
