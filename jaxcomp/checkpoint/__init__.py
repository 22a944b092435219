"""Checkpoints: a state saved whole, restored to the bit, or for other workers."""
