"""Whole small programs that train with compressed gradients, in six styles of JAX.

`python -m examples` shows what differs from their uncompressed forms.
"""
