"""What the workers of a program are given: gradients or models, and their precision."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.adversary.draw import Program

__all__ = ["BAD", "STEPS", "gradients", "nested", "one_of", "precision", "with_events"]

STEPS = 50
ZERO, BAD = 2, 3  # steps in which all gradients are 0, and in which one is not finite
QUIET = 25  # from here on gradients are 0


def nested(values: dict[str, Any]) -> Any:
    """A tree from names with slashes; a tensor without a name is the whole tree."""
    if "" in values:
        return values[""]
    result: dict[str, Any] = {}
    for name, x in values.items():
        *folders, last = name.split("/")
        node = functools.reduce(lambda n, f: n.setdefault(f, {}), folders, result)
        node[last] = x
    return result


def gradients(program: Program, workers: int, steps: int, seed: int = 0) -> Any:
    """[steps, workers, ...], heavy-tailed, with the dead rows of the program."""
    rng = np.random.default_rng(seed)

    def of(shape: tuple[int, ...], dtype: str) -> jax.Array:
        def draw() -> np.ndarray:
            return rng.standard_t(4, size=(steps, workers, *shape)) + 0.5

        x = draw() + 1j * draw() if "complex" in dtype else draw()
        if shape and program.dead:
            axis, size = (-1, shape[-1]) if program.dead == "columns" else (2, shape[0])
            first = {"first": 0, "middle": 1}.get(program.dead, size - 2)
            places = range(max(first, 0), min(first + 2, size - 1))
            np.moveaxis(x, axis, 0)[list(places)] = 0
        return jnp.asarray(program.scale * x, dtype)

    return nested({x.name: of(x.shape, x.dtype) for x in program.tree})


def with_events(program: Program, workers: int) -> Any:
    """Random gradients: zero in one step, not finite in one, and zero at the end."""
    rng = np.random.default_rng(program.seed)
    trees = gradients(program, workers, STEPS, program.seed)
    arrays, structure = jax.tree.flatten(trees)
    arrays = [np.array(x) for x in arrays]
    for x in arrays:
        x[[ZERO, *range(QUIET, STEPS)]] = 0
    full = [x for x in arrays if x.size]
    if full:
        x = full[rng.integers(len(full))]
        place = (BAD, *(rng.integers(n) for n in x.shape[1:]))
        x[place] = [np.nan, np.inf][rng.integers(2)]
    return jax.tree.unflatten(structure, arrays)


def one_of(trees: Any) -> Any:
    """Zeros like the tree of a worker, without the axes of steps and workers."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), trees)


def precision(program: Program) -> float:
    """What rounding may do, as a part of the largest element: some ulps."""
    return max(8 * float(jnp.finfo(leaf.dtype).eps) for leaf in program.tree) + 2e-5
