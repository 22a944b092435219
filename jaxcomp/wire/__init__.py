"""Count the bytes that workers send, from the text of the compiled program.

The dtypes in Python do not tell how many bytes are sent: some backends convert a
bfloat16 all-reduce to float32, and send a bool as a byte. The compiled program shows
what is really sent.

A worker's message is what it hands to a collective, the size of the operands; if
workers hand over different amounts, the largest one counts. How many bytes leave the
worker depends on the algorithm of the collective: of an all-gather in a ring it
forwards the messages of all others. `link_bytes` gives the number for ring algorithms,
and `exact_bytes` that of the uncompressed all-reduce to compare it with.
"""

from jaxcomp.wire.bytes import (
    Collective,
    collective_bytes,
    collectives,
    dense_bytes,
    exact_bytes,
    link_bytes,
)
from jaxcomp.wire.program import KINDS, WireError
from jaxcomp.wire.traced import first_message, traced_collectives, without_messages

__all__ = [
    "KINDS",
    "Collective",
    "WireError",
    "collective_bytes",
    "collectives",
    "dense_bytes",
    "exact_bytes",
    "first_message",
    "link_bytes",
    "traced_collectives",
    "without_messages",
]
