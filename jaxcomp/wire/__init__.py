"""Count the bytes that workers send, from the text of the compiled program.

The dtypes in Python do not tell how many bytes are sent: some backends convert a
bfloat16 all-reduce to float32, and send a bool as a byte. The compiled program shows
what is really sent.

Bytes are those that one worker hands to a collective, the size of its operands. How
often the network copies them depends on the algorithm of the collective; `link_bytes`
gives the number for ring algorithms. If workers hand over different amounts, the
largest one counts.
"""

from jaxcomp.wire.apart import first_message, without_messages
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
    "first_message",
    "link_bytes",
    "traced_collectives",
    "without_messages",
]
