"""What goes over the wire: payloads, their bits, and the one message of a step.

`payloads` are the types, `packing` puts symbols into bytes, `indices` codes the places
of kept elements, `bitmaps` are sets of places, and `message` joins all of a step.
"""

from jaxcomp.coding import bitmaps, indices, message, packing, payloads

__all__ = ["bitmaps", "indices", "message", "packing", "payloads"]
