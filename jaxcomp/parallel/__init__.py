"""Workers: their devices, the placement of their state, and the mapping of a step.

`PerWorker` state has a leading axis of workers; other state is the same on all of them.
"""

from jaxcomp.parallel.cluster import Silent, check_same, texts_of_all
from jaxcomp.parallel.mapping import Mapped, map_step, on_device, pmap, shard_map
from jaxcomp.parallel.placing import (
    axes,
    of_processes,
    place,
    specs_of_device,
    spread,
    spread_spec,
    sum_over_processes,
    to_host,
)
from jaxcomp.parallel.workers import AXIS, MAPPERS, Workers, keep_pages, setup, throttle

__all__ = [
    "AXIS",
    "MAPPERS",
    "Mapped",
    "Silent",
    "Workers",
    "axes",
    "check_same",
    "keep_pages",
    "map_step",
    "of_processes",
    "on_device",
    "place",
    "pmap",
    "setup",
    "shard_map",
    "specs_of_device",
    "spread",
    "spread_spec",
    "sum_over_processes",
    "texts_of_all",
    "throttle",
    "to_host",
]
