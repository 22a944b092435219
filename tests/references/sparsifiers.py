"""Sparsifiers by sorting and loops."""

import numpy as np

__all__ = ["top_k"]


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    """Sort by magnitude, keep the last k; of equals the first ones."""
    order = np.argsort(-np.abs(x), axis=None, kind="stable")
    result = np.zeros(x.size, x.dtype)
    result[order[:k]] = x.reshape(-1)[order[:k]]
    return result.reshape(x.shape)
