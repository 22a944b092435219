"""What is sent: payloads, how they are packed into bits, and the message of a step.

`payloads` has the types of payloads, `packing` packs symbols into bytes, `indices`
codes the places of elements, `bitmaps` are sets of places, and `message` joins all
payloads of a step into one array.
"""

from jaxcomp.core.coding import indices, message, packing, payloads

__all__ = ["bitmaps", "indices", "message", "packing", "payloads"]
