"""How close gradients are to matrices of low rank, and how close PowerSGD comes."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxcomp import exchanges
from jaxcomp.base import Array, State, Tree
from jaxcomp.compressors._matrices import fold
from jaxcomp.errors import UserError
from jaxcomp.parallel import AXIS
from jaxcomp.trees import name_of

__all__ = ["Spectrum", "power_sgd_errors", "spectra"]


class Spectrum(NamedTuple):
    """The singular values of a tensor as a matrix, the largest first."""

    name: str
    rows: int
    columns: int
    values: np.ndarray

    def error(self, rank: int) -> float:
        """|A - A_r|^2 / |A|^2 of the best matrix of a rank; 0 for a zero tensor."""
        squares = self.values**2
        total = float(np.sum(squares))
        return float(np.sum(squares[rank:])) / total if total else 0.0


def spectra(tree: Tree) -> list[Spectrum]:
    """The spectrum of each tensor of two axes or more.

    A convolution of shape (height, width, in, out) is a matrix of height x width x in
    rows and out columns, as in `svd` and `power_sgd`.

    Args:
      tree: such as a gradient.

    Example:
      >>> [found] = spectra({"w": np.diag(np.float32([2, 1])), "b": np.ones(3)})
      >>> found.name, found.values.tolist(), found.error(rank=1)
      ('w', [2.0, 1.0], 0.2)
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if sum(length > 1 for length in np.shape(leaf)) < 2:
            continue
        matrix = np.asarray(fold(jax.numpy.asarray(leaf)))
        values = np.linalg.svd(matrix, compute_uv=False)
        rows, columns = matrix.shape
        found.append(Spectrum(name_of(path), rows, columns, values))
    return found


def power_sgd_errors(
    trees: Sequence[Tree], rank: int = 2, warm: bool = True
) -> list[float]:
    """The error of PowerSGD on each of the gradients of a run, one after the other.

    No memory is between the steps, so that only the start of the power iteration is
    compared: with `warm`, it is the result of the step before.

    Args:
      trees: gradients of consecutive steps.
      rank: of the approximation.
      warm: whether the factor of the last step is kept; otherwise each step starts from
        the same random one.

    Example:
      >>> tree = np.float32(np.random.default_rng(0).normal(size=(20, 20)))
      >>> warm = power_sgd_errors([tree] * 9, rank=1)
      >>> cold = power_sgd_errors([tree] * 9, rank=1, warm=False)
      >>> warm[0] == cold[0], warm[8] < cold[8]
      (True, True)
    """
    if not trees:
        raise UserError("there are no gradients")
    exchange = exchanges.make(f"power_sgd(rank={rank})", "none")
    fresh = exchange.init(trees[0])

    def step(tree: Tree, state: State, key: Array) -> tuple[State, Array]:
        result = exchange.average(tree, state, key)
        return result.state, result.info.gradient_error

    run = jax.jit(
        jax.vmap(step, in_axes=(None, None, None), axis_name=AXIS, axis_size=1)
    )
    state, errors = fresh, []
    for tree in trees:
        kept, error = run(tree, state if warm else fresh, jax.random.key(0))
        state = jax.tree.map(lambda x: x[0], kept)
        errors.append(float(error[0]))
    return errors
