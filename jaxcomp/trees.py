"""Functions of trees of arrays: names of leaves, shapes, dtypes and norms."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Spec, Tree

__all__ = [
    "cast",
    "cast_like",
    "clipped",
    "joint_dtype",
    "label_of",
    "name_of",
    "norm",
    "norms",
    "numbers_of",
    "quick_norm",
    "scale_to",
    "spec_of",
    "varies_over",
    "vary_like",
    "wide_spec",
    "widen",
    "zeros_like_spec",
]


def name_of(path: Any, separator: str = "/") -> str:
    """The path of a leaf as a string, such as "Dense_0/kernel"; empty for a lone array.

    Args:
      path: from `jax.tree_util.tree_flatten_with_path`.
      separator: string between the parts of the path.

    Example:
      >>> [(path, _)] = jax.tree_util.tree_flatten_with_path({"a": [3]})[0]
      >>> name_of(path)
      'a/0'
    """
    return jax.tree_util.keystr(path, simple=True, separator=separator)


def label_of(path: Any) -> str:
    """How messages refer to a leaf."""
    return name_of(path) or "the tensor"


def numbers_of(tree: Tree) -> list[int]:
    """For each leaf its number in a tree of which parts may be absent.

    A part of a tree has None in place of the leaves that it lacks. These are counted.

    Example:
      >>> numbers_of({"a": 1, "b": None, "c": (2, 3)})
      [0, 2, 3]
    """
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: x is None)
    return [i for i, leaf in enumerate(leaves) if leaf is not None]


def spec_of(tree: Tree) -> Spec:
    """Shapes and dtypes of a tree of arrays, tracers or specs.

    Example:
      >>> spec_of(jnp.zeros((2, 3)))
      ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def zeros_like_spec(spec: Spec) -> Tree:
    """A tree of zeros with the given shapes and dtypes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec)


def varies_over(x: Any) -> frozenset[str]:
    """The mapped axes along which an array differs, according to `jax.shard_map`.

    Under other mappers, and with `check_vma=False`, this is not known and empty.

    Example:
      >>> varies_over(jnp.ones(3))
      frozenset()
    """
    kind = jax.typeof(x)
    # The first versions of jax 0.10 call it `vma`.
    return (
        kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma
    )


def vary_like(tree: Tree, others: Tree) -> Tree:
    """The same arrays, with a type that differs along the axes along which others do.

    `jax.shard_map` checks that a loop starts with the type of its result, and that all
    branches have results of one type. A constant does not differ between workers, so it
    needs this function there. Nothing is computed.

    Args:
      tree: the arrays to start with.
      others: arrays that the result depends on.
    """
    axes = frozenset[str]().union(*map(varies_over, jax.tree.leaves(others)))

    def typed(x: Array) -> Array:
        missing = axes - varies_over(x)
        return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x

    return jax.tree.map(typed, tree)


def wide_spec(spec: Spec) -> Spec:
    """The same shapes in at least float32, the dtype of sums and residuals.

    Example:
      >>> wide_spec(jax.ShapeDtypeStruct((2,), jnp.bfloat16)).dtype
      dtype('float32')
    """

    def widen(s: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(s.shape, np.promote_types(s.dtype, np.float32))

    return jax.tree.map(widen, spec)


def joint_dtype(dtypes: Iterable[Any]) -> Any:
    """The dtype of a vector that joins arrays: their dtype, or at least float32.

    Example:
      >>> joint_dtype([jnp.dtype("float16"), jnp.dtype("bfloat16")])
      dtype('float32')
      >>> joint_dtype([jnp.dtype("float16")])
      dtype('float16')
    """
    first, *others = set(dtypes)
    if not others:
        return first
    # float16 and bfloat16 have no common type in NumPy.
    wide = [np.promote_types(dtype, np.float32) for dtype in (first, *others)]
    return functools.reduce(np.promote_types, wide)


def cast(x: Array, dtype: Any) -> Array:
    """An array in another dtype; finite numbers beyond its largest become the largest.

    NaN and infinity stay, so that they can be detected.

    Example:
      >>> cast(jnp.array([1e6, jnp.inf]), jnp.float16).tolist()
      [65504.0, inf]
    """
    if np.promote_types(x.dtype, dtype) != dtype:
        largest = jnp.asarray(jnp.finfo(dtype).max, x.dtype)
        x = jnp.where(jnp.isfinite(x), jnp.clip(x, -largest, largest), x)
    return x.astype(dtype)


def cast_like(tree: Tree, spec: Spec) -> Tree:
    """The tree in the dtypes of a spec or of another tree, by `cast`.

    Example:
      >>> cast_like(jnp.zeros(2), jax.ShapeDtypeStruct((2,), jnp.bfloat16)).dtype
      dtype(bfloat16)
    """
    return jax.tree.map(lambda x, s: cast(x, s.dtype), tree, spec)


def widen(tree: Tree) -> Tree:
    """The tree in at least float32.

    Example:
      >>> widen(jnp.zeros(2, jnp.bfloat16)).dtype
      dtype('float32')
    """
    return cast_like(tree, wide_spec(tree))


def norms(tree: Tree) -> list[Array]:
    """Euclidean norm of each leaf in float32, without overflow or underflow.

    Example:
      >>> norms({"a": jnp.array([3e30, -4e30]), "b": jnp.zeros(2)})
      [Array(5.e+30, dtype=float32), Array(0., dtype=float32)]
    """
    leaves = jax.tree.leaves(tree)
    return list(_norms(leaves)) if leaves else []


def norm(tree: Tree) -> Array:
    """Euclidean norm of all leaves together."""
    leaves = jax.tree.leaves(tree)
    return _norms([_norms(leaves)])[0] if leaves else jnp.float32(0)


@jax.jit  # outside of jit, each call would compile its branches anew
def quick_norm(tree: Tree) -> Array:
    """As `norm`, on a CPU by one pass where it is possible.

    Where the sum of the squares may have overflowed or lost small ones, the norm is
    computed again, in two passes. An accelerator takes these at once: a branch costs it
    more than a pass.

    Pass arrays in the shape in which they are read elsewhere. XLA computes what they
    are made of once for each shape.
    """
    leaves = [_real(x).astype(jnp.float32) for x in jax.tree.leaves(tree)]

    def one_pass(leaves: list[Array]) -> Array:
        total = jnp.sum(jnp.stack([jnp.sum(jnp.square(x)) for x in leaves]))
        fits = (total > np.float32(1e-20)) & (total < np.float32(1e30))
        return jax.lax.cond(fits, lambda _: jnp.sqrt(total), two_passes, leaves)

    def two_passes(leaves: list[Array]) -> Array:
        # One vector, which is compiled faster.
        return norm(jnp.concatenate([x.reshape(-1) for x in leaves]))

    if not leaves:
        return jnp.float32(0)
    return jax.lax.platform_dependent(leaves, cpu=one_pass, default=norm)


def scale_to(length: Array, limit: Array | float) -> Array:
    """The factor of at most 1 that reduces a length to a limit; NaN for NaN."""
    return jnp.where(length <= limit, 1.0, limit / length)


def clipped(tree: Tree, limit: Array | float, each: bool = False) -> Tree:
    """The tree, or each of its leaves, scaled down to a norm of at most `limit`.

    Example:
      >>> clipped(jnp.array([3.0, 4.0]), limit=1.0)
      Array([0.6, 0.8], dtype=float32)
    """
    leaves, structure = jax.tree.flatten(tree)
    lengths = norms(tree) if each else [norm(tree)] * len(leaves)
    pairs = zip(leaves, lengths, strict=True)
    scaled = [x * scale_to(n, limit).astype(x.dtype) for x, n in pairs]
    return jax.tree.unflatten(structure, scaled)


def _real(x: Array) -> Array:
    return jnp.abs(x) if jnp.iscomplexobj(x) else x


def _norms(leaves: list[Array]) -> Array:
    """The norm of each array; what is done to single numbers is done to all at once."""
    magnitudes = [jnp.abs(x).astype(jnp.float32) for x in leaves]
    peaks = [jnp.max(x) if x.size else jnp.sum(x) for x in magnitudes]
    _, exponents = jnp.frexp(jnp.stack(peaks))
    # The power of two keeps squares in range. It and its inverse are normal numbers. A
    # reduction by maximum may lose a NaN, but the sum does not.
    exponents = jnp.clip(exponents, -120, 120)
    factors = jnp.ldexp(jnp.float32(1), -exponents)
    sums = [jnp.sum(jnp.square(x * factors[i])) for i, x in enumerate(magnitudes)]
    return jnp.sqrt(jnp.stack(sums)) * jnp.ldexp(jnp.float32(1), exponents)
