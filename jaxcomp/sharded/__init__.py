"""Arrays that live on a mesh, under jit: methods in loops that name no axis."""

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
