"""Low rank by NumPy's SVD in float64, probabilities and draws by loops."""

import numpy as np


def as_matrix(x: np.ndarray) -> np.ndarray:
    """The last axis beside all others; a vector in rows of a square, with zeros."""
    x = x.astype(np.float64)
    axes = [length for length in x.shape if length > 1]
    if len(axes) > 1:
        return x.reshape(-1, axes[-1])
    rows = 1
    while rows * rows < x.size:
        rows += 1
    columns = 1
    while rows * columns < x.size:
        columns += 1
    matrix = np.zeros(rows * columns)
    matrix[: x.size] = x.reshape(-1)
    return matrix.reshape(rows, columns)


def truncated_svd(x: np.ndarray, rank: int) -> np.ndarray:
    """The sum of the first `rank` triples of the matrix, in the shape of x."""
    u, s, v = np.linalg.svd(as_matrix(x), full_matrices=False)
    matrix = sum(s[i] * np.outer(u[:, i], v[i]) for i in range(min(rank, len(s))))
    return np.reshape(np.asarray(matrix).reshape(-1)[: x.size], x.shape)


def atom_chances(lengths: np.ndarray, count: int) -> np.ndarray:
    """min(1, c s_i) with sum `count`: cap what exceeds 1, share again, repeat."""
    chances = np.zeros(len(lengths))
    capped = np.zeros(len(lengths), bool)
    while True:
        rest = lengths[~capped].sum()
        if rest > 0:
            chances[~capped] = (count - capped.sum()) * lengths[~capped] / rest
        over = (chances > 1) & ~capped
        if not over.any():
            return np.where(capped, 1.0, chances)
        capped |= over


def relative_atom_chances(lengths: np.ndarray, most: int) -> np.ndarray:
    """s_i / s_1, or in the same proportions with the sum `most`."""
    if not lengths.any():
        return lengths
    chances = lengths / lengths.max()
    return chances * min(1, most / chances.sum())


def draw_atoms(chances: np.ndarray, count: int, offset: float) -> list[int]:
    """Walk along the intervals of length p_i; each tick offset + j names one."""
    drawn = []
    for j in range(count):
        end = 0.0
        for i, chance in enumerate(chances):
            end += chance
            if offset + j < end:
                drawn.append(i)
                break
    return drawn
