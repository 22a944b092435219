"""srrcomp 0.1.3, by EDEN's authors."""

from typing import Any

import numpy as np
import pytest

from benchmarks.vectors import draw
from tests.laws import draws as ours


def error(outputs: np.ndarray, x: np.ndarray) -> float:
    """E|x - C(x)|^2 / |x|^2 over the rows."""
    return float(np.square(outputs - x).sum(axis=1).mean() / np.square(x).sum())


def theirs(torch: Any, srrcomp: Any, x: np.ndarray, bits: int, draws: int) -> Any:
    coder, vector = srrcomp.Eden(), torch.from_numpy(x)
    rows = [
        coder.decompress(coder.compress(vector, bits, seed)) for seed in range(draws)
    ]
    return np.stack([row.numpy() for row in rows]).astype(np.float64)


@pytest.mark.parametrize("source", ["gaussian", "log-normal"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_eden_errs_as_much(torch: Any, srrcomp: Any, source: str, bits: int) -> None:
    """Given the blocks of 256 that we rotate: to 2 %, of which chance takes 0.7 %."""
    x, draws = draw(source, (1 << 15,)), 8
    own = error(ours(f"eden(bits={bits})", x, draws), x)
    parts = [theirs(torch, srrcomp, part, bits, draws) for part in x.reshape(-1, 256)]
    assert own == pytest.approx(error(np.concatenate(parts, axis=1), x), rel=0.02)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_blocks_do_not_add_to_the_error(torch: Any, srrcomp: Any, bits: int) -> None:
    """srrcomp rotates the whole vector, to elements with longer tails than ours."""
    x, draws = draw("gaussian", (1 << 16,)), 8
    own = error(ours(f"eden(bits={bits})", x, draws), x)
    whole = error(theirs(torch, srrcomp, x, bits, draws), x)
    assert 0.97 * whole < own < 1.005 * whole


@pytest.mark.parametrize("bits", [1, 2])
def test_both_are_unbiased(torch: Any, srrcomp: Any, bits: int) -> None:
    """The mean of d outputs errs by 1/d of one, and no output is too long along x."""
    x, draws = draw("log-normal", (2048,)), 200
    for rows in (
        ours(f"eden(bits={bits})", x, draws),
        theirs(torch, srrcomp, x, bits, draws),
    ):
        one = error(rows, x)
        of_the_mean = error(rows.mean(axis=0, keepdims=True), x)
        assert of_the_mean == pytest.approx(one / draws, rel=0.25)
        along = rows @ x / np.square(x, dtype=np.float64).sum()
        # We send scales in bfloat16, rounded at random: 0.4 % each, even in the mean.
        np.testing.assert_allclose(along, 1, atol=0.01)
        np.testing.assert_allclose(along.mean(), 1, atol=0.001)
