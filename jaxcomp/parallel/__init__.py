"""Workers: their devices, the placement of their state, and the mapping of a step.

`PerWorker` state has a leading axis of workers; other state is the same on all of them.
"""

from jaxcomp.parallel.mapping import map_step, pmap, shard_map
from jaxcomp.parallel.placing import axes, place, spread, to_host
from jaxcomp.parallel.workers import AXIS, MAPPERS, Workers, keep_pages, setup

__all__ = [
    "AXIS",
    "MAPPERS",
    "Workers",
    "axes",
    "keep_pages",
    "map_step",
    "place",
    "pmap",
    "setup",
    "shard_map",
    "spread",
    "to_host",
]
