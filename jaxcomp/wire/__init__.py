"""Bytes that really cross the wire, read from the compiled program.

What Python says and what is sent differ: a bf16 all-reduce travels as float32 on some
backends, a bool as a byte. So the figure is read where it cannot lie, in the text of
the program that runs.

The unit is what one worker hands to a collective: the size of its operands. How often
a network copies it is the network's business and depends on the algorithm; `link_bytes`
gives the figure of the usual ring algorithms. Where workers have different parts in a
collective, it is the figure of the busiest.
"""

from jaxcomp.wire.figures import collective_bytes, dense_bytes, link_bytes
from jaxcomp.wire.found import KINDS, Collective, WireError
from jaxcomp.wire.program import collectives
from jaxcomp.wire.traced import traced_collectives

__all__ = [
    "KINDS",
    "Collective",
    "WireError",
    "collective_bytes",
    "collectives",
    "dense_bytes",
    "link_bytes",
    "traced_collectives",
]
