"""What is sent: payloads, how they are packed into bits, and the message of a step.

`payloads` has the types of payloads, `packing` packs symbols into bytes, `indices`
codes the indices of elements, and `message` joins all payloads of a step into one
array.
"""

from jaxcomp.core.coding import indices, message, packing, payloads

__all__ = ["indices", "message", "packing", "payloads"]
