"""Overlap with the backward pass: a gradient in parts, with a message for each.

The gradients of a network's last layers are ready first. A message of these can travel
while the others are computed. `ready_order` says which are ready when, a `Cut` makes
parts of a tree in that order, `overlapped` exchanges one part after the other, and
`compiler_options` lets XLA order the program accordingly.
"""

from jaxcomp.overlap.cuts import WHOLE, Cut
from jaxcomp.overlap.exchange import overlapped
from jaxcomp.overlap.ready import ready_order
from jaxcomp.overlap.schedule import compiler_options

__all__ = ["WHOLE", "Cut", "compiler_options", "overlapped", "ready_order"]
