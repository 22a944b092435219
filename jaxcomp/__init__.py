"""Compressed gradient exchange for data-parallel training in JAX.

    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.01)")
    tx = optax.chain(jaxcomp.distributed(exchange, seed=0), optax.sgd(0.1))

The whole method is that one link. README.md shows the rest; docs/architecture.md draws
the way of one step through the folders.
"""

import importlib
from typing import Any

from jaxcomp import (
    clipping,
    compressors,
    exchanges,
    gossip,
    local,
    memory,
    optimizers,
    parallel,
    scope,
    wire,
)
from jaxcomp._version import __version__
from jaxcomp.base import (
    Averaged,
    Compressor,
    Exchange,
    Info,
    Mixed,
    Mixer,
    PerWorker,
    Resize,
    averaged_on_resize,
)
from jaxcomp.checkpoint import CheckpointError, restore, save
from jaxcomp.coding.payloads import nbits
from jaxcomp.compressors import make as make_compressor
from jaxcomp.errors import UserError
from jaxcomp.gossip import topology
from jaxcomp.link_state import DistributedState, find_state, find_states
from jaxcomp.make import make_exchange, make_mixer
from jaxcomp.marks import check_state, per_worker
from jaxcomp.nonfinite import applied_if, skip_nonfinite
from jaxcomp.overlap import overlapped, ready_order
from jaxcomp.parallel import pmap, shard_map
from jaxcomp.resizing import resized
from jaxcomp.sharded import (
    Comm,
    DataParallel,
    Decentralised,
    data_parallel,
    decentralised,
)
from jaxcomp.specs import SpecError
from jaxcomp.transform import distributed, mixing, pmean

__all__ = [
    "Averaged",
    "CheckpointError",
    "Comm",
    "Compressor",
    "DataParallel",
    "Decentralised",
    "DistributedState",
    "Exchange",
    "Info",
    "Mixed",
    "Mixer",
    "PerWorker",
    "Resize",
    "SpecError",
    "UserError",
    "__version__",
    "applied_if",
    "averaged_on_resize",
    "check_state",
    "clipping",
    "compressors",
    "data_parallel",
    "decentralised",
    "distributed",
    "exchanges",
    "find_state",
    "find_states",
    "gossip",
    "local",
    "make_compressor",
    "make_exchange",
    "make_mixer",
    "memory",
    "mixing",
    "nbits",
    "optimizers",
    "overlapped",
    "parallel",
    "per_worker",
    "pmap",
    "pmean",
    "ready_order",
    "resized",
    "restore",
    "save",
    "scope",
    "shard_map",
    "skip_nonfinite",
    "topology",
    "wire",
]

# Parts that are imported when they are asked for. All but `study` need the extra
# `train`; the library alone is jax and optax.
_ON_DEMAND = ("data", "models", "report", "study", "training")


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return importlib.import_module(f"jaxcomp.{name}")
    raise AttributeError(f"module 'jaxcomp' has no attribute {name!r}")
