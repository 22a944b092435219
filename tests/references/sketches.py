"""Count sketch with hash functions written out as tables."""

import numpy as np


def sketch_tables(
    x: np.ndarray, places: np.ndarray, signs: np.ndarray, width: int
) -> np.ndarray:
    """T_j[h_j(i)] += s_j(i) x_i, element by element; places and signs are [r, n]."""
    tables = np.zeros((len(places), width))
    for j in range(len(places)):
        for i in range(len(x)):
            tables[j, places[j, i]] += signs[j, i] * float(x[i])
    return tables


def sketch_estimates(
    tables: np.ndarray, places: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    """The r numbers s_j(i) T_j[h_j(i)] for each element, [r, n]."""
    rows = range(len(tables))
    return np.array([signs[j] * tables[j, places[j]] for j in rows])
