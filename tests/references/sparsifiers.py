"""Sparsifiers by sorting and loops."""

import math

import numpy as np


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    """Sort by magnitude, keep the last k; of equals the first ones."""
    order = np.argsort(-np.abs(x), axis=None, kind="stable")
    return _only(x, order[:k])


def block_top_k(x: np.ndarray, block: int, per_block: int) -> np.ndarray:
    """Block by block, elements so many blocks apart being in the same one."""
    flat = x.reshape(-1)
    blocks = -(-flat.size // block)
    result = np.zeros_like(flat)
    for first in range(blocks):
        result[first::blocks] = top_k(flat[first::blocks], per_block)
    return result.reshape(x.shape)


def threshold(x: np.ndarray, v: float, most: int) -> tuple[np.ndarray, int]:
    """Elements of magnitude >= v, the largest ones if too many; how many passed."""
    passed = np.abs(x.astype(np.float64)) >= v
    return np.where(passed, top_k(x, most), 0), int(passed.sum())


def adaptive_threshold(x: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Elements of at least half the largest magnitude; how many passed."""
    wide = np.abs(x.astype(np.float64))
    passed = (2 * wide >= wide.max()) & (wide > 0)
    return np.where(passed, top_k(x, most), 0), int(passed.sum())


def random_subset(seed: tuple[int, int], words: list[int], size: int) -> list[int]:
    """One place of each stratum, rotated, by integers of any length."""
    count = len(words)
    rotation = ((seed[0] << 32) + seed[1]) * size >> 64
    places, start = [], 0
    for stratum, word in enumerate(words):
        width = size // count + (stratum < size % count)
        places.append((start + (word * width >> 32) + rotation) % size)
        start += width
    return places


def dgc_top_k(
    x: np.ndarray,
    keep: float,
    sample: float,
    start: int,
    upper: float = 1.3,
    lower: float = 0.8,
    rounds: int = 10,
    resample: bool = True,
) -> tuple[np.ndarray, int]:
    """The published procedure, step by step, but for the last one.

    Where more are selected than there is room for, the original takes the first ones,
    and this the largest ones.

    Returns:
      The sparse vector, and how many reached the threshold.
    """
    n = x.size
    magnitudes = np.abs(x)
    k = math.ceil(n * keep)
    want = max(math.ceil(n * sample), math.ceil(2 / keep))
    if n <= math.ceil(2 / keep):
        stride = 1
    else:
        stride = math.ceil(n / want / 32) * 32 + 1
        while n // stride < want:
            stride -= 8
    samples = magnitudes if stride == 1 else magnitudes[start::stride]
    top = math.ceil(n // stride * keep)
    limit = np.sort(samples)[-top]
    if stride == 1:
        return top_k(x, k), k
    selected = int((magnitudes >= limit).sum())
    largest = np.finfo(x.dtype).max
    for _ in range(rounds):
        if selected > upper * k and not resample:
            limit = min(limit, largest / x.dtype.type(upper)) * x.dtype.type(upper)
        elif selected < lower * k:
            limit = limit * x.dtype.type(lower)
        else:
            break
        selected = int((magnitudes >= limit).sum())
    if selected <= upper * k:
        return top_k(x, selected), selected
    return top_k(x, k if resample else math.floor(upper * k)), selected


def _only(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    result = np.zeros(x.size, x.dtype)
    result[places] = x.reshape(-1)[places]
    return result.reshape(x.shape)
