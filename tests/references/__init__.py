"""Slow and obvious versions in NumPy and plain Python, to compare with."""

from tests.references.packing import elias_fano, pack
from tests.references.quantisers import Levels, qsgd, sign
from tests.references.sparsifiers import top_k

__all__ = ["Levels", "elias_fano", "pack", "qsgd", "sign", "top_k"]
