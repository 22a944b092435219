"""Compile a step for accelerators that are not here, and read what it would cost.

    target = targets.make("a100", hosts=2, devices=8)
    mapped = parallel.map_step(step, target.workers, in_axes=0, out_axes=0)
    program = targets.read(targets.compiled(mapped, target, targets.specs(x, target)))

XLA's compiler for GPUs and TPUs runs on any CPU. Its program says which collectives
send how many bytes, how many kernels are started, how much memory they need and in
which order they run. How long they take it does not say.
"""

from jaxcomp.targets.devices import NAMES, Target, compiled, make, missing, specs
from jaxcomp.targets.order import Event, Overlap, overlap
from jaxcomp.targets.reading import Memory, Program, read
from jaxcomp.targets.traffic import memory_traffic

__all__ = [
    "NAMES",
    "Event",
    "Memory",
    "Overlap",
    "Program",
    "Target",
    "compiled",
    "make",
    "memory_traffic",
    "missing",
    "overlap",
    "read",
    "specs",
]
