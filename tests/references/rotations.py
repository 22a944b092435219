"""Rotations reflection by reflection, and EDEN block by block, in float64."""

import math

import numpy as np


def reflections(directions: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """H_1 H_2 ... with signed columns.

    H_i reflects the i-th axis to the direction in column i, of which only the places
    from i on count, or to the opposite one if that is farther away.
    """
    size = len(directions)
    product = np.eye(size)
    for i in range(size):
        target = np.where(np.arange(size) < i, 0, directions[:, i])
        target = target / np.linalg.norm(target)
        axis = np.eye(size)[i]
        if axis @ target > 0:
            target = -target
        mirror = (axis - target) / np.linalg.norm(axis - target)
        product = product @ (np.eye(size) - 2 * np.outer(mirror, mirror))
    return product * signs


def eden_blocks(size: int) -> tuple[int, int]:
    """Number of blocks and elements of each, for at most 4096 blocks."""
    number = math.ceil(size / min(192, 4 * math.isqrt(size)))
    return number, math.ceil(size / number)


def eden(
    x: np.ndarray,
    rotation: np.ndarray,
    flips: np.ndarray,
    positive: np.ndarray,
    unbiased: bool,
) -> np.ndarray:
    """C(x) with scales that are not rounded.

    Args:
      x: [n].
      rotation: [width, width].
      flips: [blocks * width] of 1 and -1.
      positive: the positive levels.
      unbiased: which scale.
    """
    width = len(rotation)
    levels = np.concatenate([-positive, positive])
    padded = np.concatenate([x, np.zeros(flips.size - x.size)])
    result = []
    for block, flip in zip(
        padded.reshape(-1, width), flips.reshape(-1, width), strict=True
    ):
        if not block.any():
            result.append(block)
            continue
        rotated = rotation @ (flip * block)
        normal = rotated / np.linalg.norm(block) * math.sqrt(width)
        nearest = np.abs(normal[:, None] - levels).argmin(axis=1)
        q = levels[nearest]
        scale = rotated @ q / (q @ q)
        if unbiased:
            scale = block @ block / (rotated @ q)
        result.append(scale * flip * (rotation.T @ q))
    return np.concatenate(result)[: x.size]
