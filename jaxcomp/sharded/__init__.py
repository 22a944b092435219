"""Arrays that live on a mesh, under jit: exchanges in loops that name no axis."""

from jaxcomp.sharded.data_parallel import Comm, DataParallel, data_parallel

__all__ = ["Comm", "DataParallel", "data_parallel"]
