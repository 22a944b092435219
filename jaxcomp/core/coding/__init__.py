"""What is sent: payloads, how they are packed into bits, and the message of a step.

`payloads` has the types of payloads and joins all payloads of a step into one array,
`packing` packs symbols into bytes, and `indices` codes the indices of elements.
"""
