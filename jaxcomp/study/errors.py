"""Bits and error of methods on a given tree: points, curves, and what is best."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp import infos
from jaxcomp.base import Compressor, Tree
from jaxcomp.coding.payloads import nbits
from jaxcomp.compressors import make as make_compressor
from jaxcomp.errors import UserError
from jaxcomp.scope import Plan, lift
from jaxcomp.trees import spec_of

__all__ = [
    "Point",
    "frontier",
    "measure",
    "round_trip",
    "shannon_bound",
    "sweep",
]


class Point(NamedTuple):
    """What a method costs and what it loses, on one tree."""

    method: str
    bits: float  # sent for each element; 32 without compression
    ideal_bits: float  # of a perfect coder, for the same messages
    error: float  # |x - C(x)|^2 / |x|^2, mean over keys
    # delta in E|x - C(x)|^2 <= (1 - delta) |x|^2 for every x; None: there is none.
    contraction: float | None
    unbiased: bool


def measure(
    tree: Tree,
    compressor: str | Compressor,
    scope: str | Plan = "per_leaf",
    draws: int = 3,
    seed: int = 0,
) -> Point:
    """Measure one method on a tree.

    Args:
      tree: such as a gradient.
      compressor: of arrays, or its spec string.
      scope: which tensors are compressed as one vector.
      draws: keys over which the error is averaged.
      seed: of the keys.

    Example:
      >>> point = measure({"w": np.float32([3, -4])}, "top_k(keep=0.5)")
      >>> point.method, round(point.error, 2)
      ('top_k(keep=0.5)', 0.36)
    """
    if draws < 1:
        raise UserError(f"draws is the number of keys, at least 1, not {draws}")
    method = make_compressor(compressor)
    codec, spec = lift(scope, method), spec_of(tree)
    elements = sum(leaf.size for leaf in jax.tree.leaves(spec))
    if not elements:
        raise UserError("the tree has no elements, so no method has an error on it")

    @jax.jit
    def once(tree: Tree, key: jax.Array) -> Any:
        payload, _ = codec.compress(tree, codec.init(spec), key)
        return payload, infos.measure(tree, codec.decompress(payload, spec))

    keys = jax.random.split(jax.random.key(seed), draws)
    results = [once(tree, key) for key in keys]
    return Point(
        method=method.name,
        bits=nbits(results[0][0]) / elements,
        ideal_bits=codec.ideal_bits(spec) / elements,
        error=float(np.mean([info.gradient_error for _, info in results])),
        contraction=codec.contraction(spec),
        unbiased=codec.unbiased,
    )


def sweep(
    tree: Tree,
    spec: str,
    values: Iterable[Any],
    scope: str | Plan = "per_leaf",
    draws: int = 3,
    seed: int = 0,
) -> list[Point]:
    """Measure a method over a range of one argument.

    Args:
      tree: such as a gradient.
      spec: spec string with {} where the argument stands.
      values: of the argument.
      scope: as in `measure`, and so are `draws` and `seed`.

    Example:
      >>> points = sweep({"w": np.float32([1, 2, 2])}, "top_k(keep={})", (0.3, 1.0))
      >>> [round(point.error, 3) for point in points]
      [0.556, 0.0]
    """
    if "{}" not in spec:
        raise UserError(f"{spec!r} has no {{}} where the values of the sweep stand")
    specs = [spec.replace("{}", str(value)) for value in values]
    return [measure(tree, each, scope, draws, seed) for each in specs]


def round_trip(
    tree: Tree,
    compressor: str | Compressor,
    scope: str | Plan = "per_leaf",
    seed: int = 0,
) -> Tree:
    """What arrives of a tree: C(x).

    Args:
      tree: such as a gradient.
      compressor: of arrays, or its spec string.
      scope: which tensors are compressed as one vector.
      seed: of the key.

    Example:
      >>> round_trip(np.float32([3, -4, 1]), "top_k(keep=0.3)")
      Array([ 0., -4.,  0.], dtype=float32)
    """
    codec, spec = lift(scope, compressor), spec_of(tree)

    @jax.jit
    def once(tree: Tree, key: jax.Array) -> Tree:
        payload, _ = codec.compress(tree, codec.init(spec), key)
        return codec.decompress(payload, spec)

    return once(tree, jax.random.key(seed))


def shannon_bound(bits: Any) -> Any:
    """4^-R, the least error of any code of R bits for each element of Gaussian noise.

    Args:
      bits: R, a number or an array.

    Example:
      >>> shannon_bound(1.0)
      0.25

    References:
      Shannon, Coding Theorems for a Discrete Source with a Fidelity Criterion, IRE
      National Convention Record, 1959.
    """
    return 0.25**bits


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both bits and error, by bits.

    Args:
      points: of any methods, on the same tree.

    Example:
      >>> x = np.float32([5, 4, -1, 2, 1, 1])
      >>> points = [measure(x, m) for m in ("none", "sign", "random_k(keep=0.5)")]
      >>> [point.method for point in frontier(points)]
      ['sign', 'none']
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.bits, p.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best
