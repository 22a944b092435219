"""What is done to trees of arrays: names, dtypes, norms, typed keys."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxcomp.core.types import Array, Resize, Spec, Tree


def is_key(leaf: Any) -> bool:
    """Whether an array, or the spec of one, holds typed keys.

    Example:
      >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0)), is_key(0)
      (True, False, False)
    """
    kinds = jax.Array | jax.ShapeDtypeStruct
    return isinstance(leaf, kinds) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def numbers_of(leaf: Any) -> Any:
    """The integers of typed keys; anything else unchanged.

    Example:
      >>> numbers_of(jax.random.key(3))
      Array([0, 3], dtype=uint32)
    """
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def numbers_spec(like: Any) -> Any:
    """The spec of `numbers_of(like)`, where `like` may be a spec too."""
    if not is_key(like):
        return like
    data = jax.eval_shape(jax.random.key_data, _spec(like))
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=like.sharding)


def as_keys(numbers: Any, like: Any) -> Any:
    """The integers as typed keys if `like` holds keys; else unchanged."""
    if not is_key(like):
        return numbers
    found = []  # `key_impl` takes arrays only, so it is called on a traced one
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), _spec(like))
    return jax.random.wrap_key_data(numbers, impl=found[0])


def _spec(keys: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(keys.shape, keys.dtype)


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


def leaf_numbers(tree: Tree) -> list[int]:
    """For each leaf its number in a tree of which parts may be absent.

    A part of a tree has None in place of the leaves that it lacks. These are counted.

    Example:
      >>> leaf_numbers({"a": 1, "b": None, "c": (2, 3)})
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

    leaves, structure = jax.tree.flatten(tree)
    missing = [tuple(sorted(axes - varies_over(x))) for x in leaves]
    pairs = zip(leaves, missing, strict=True)
    typed = [jax.lax.pcast(x, own, to="varying") if own else x for x, own in pairs]
    return jax.tree.unflatten(structure, typed)


def wide_spec(spec: Spec) -> Spec:
    """The same shapes in at least float32, the dtype of sums and residuals.

    Example:
      >>> wide_spec(jax.ShapeDtypeStruct((2,), jnp.bfloat16)).dtype
      dtype('float32')
    """

    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, np.promote_types(s.dtype, np.float32)),
        spec,
    )


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
    # Of complex numbers the magnitudes.
    real = [jnp.abs(x) if jnp.iscomplexobj(x) else x for x in jax.tree.leaves(tree)]
    leaves = [x.astype(jnp.float32) for x in real]

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


def has_rebuilt(state: Tree, rules: Sequence[Resize]) -> list[str]:
    """The names of the types in a state that a rule builds anew.

    Example:
      >>> has_rebuilt({"step": 1}, [])
      []
    """
    found = jax.tree.leaves(state, is_leaf=_known(rules))
    return sorted({type(x).__name__ for x in found if _known(rules)(x)})


def built_anew(
    state: Tree, rules: Sequence[Resize], params: Tree, workers: int
) -> Tree:
    """The state, with what the rules build anew as NumPy arrays.

    Args:
      state: whose other parts are those of the new workers already.
      rules: those without `rebuild` do nothing here.
      params: of what the state is for.
      workers: their new number.
    """
    builds = {rule.of: rule.rebuild for rule in rules if rule.rebuild}

    def build(node: Any) -> Any:
        if not is_known(node):
            return node
        new = builds[type(node)](node, params, workers)
        return jax.tree.map(lambda x: x if is_key(x) else np.asarray(x), new)

    is_known = _known(rules)
    return jax.tree.map(build, state, is_leaf=is_known)


def by_shards(
    build: Callable[[Tree], Tree], tree: Tree, params: Tree, workers: int
) -> Tree:
    """What is built of the shards that a device holds, as arrays of all shards.

    Args:
      build: from a tree of shards to one with an axis of the workers in front.
      tree: has the shapes of the params, or None in place of some of them.
      params: whose shardings say how a model is cut.
      workers: their number.

    Example:
      >>> by_shards(lambda x: x[None] + 1, np.arange(3), np.zeros(3), 1)
      array([[1, 2, 3]])
    """
    pairs = zip(_with_gaps(tree), _with_gaps(params), strict=True)
    cuts = [_shards(param) for own, param in pairs if own is not None]
    devices = next((list(cut) for cut in cuts if cut), [None])
    places = [[cut.get(device, (...,)) for cut in cuts] for device in devices]
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    result = [np.zeros((workers, *x.shape), x.dtype) for x in leaves]
    for place in {str(place): place for place in places}.values():
        part = [x[index] for x, index in zip(leaves, place, strict=True)]
        built = jax.tree.leaves(build(jax.tree.unflatten(structure, part)))
        for x, index, new in zip(result, place, built, strict=True):
            x[(slice(None), *index)] = new
    return jax.tree.unflatten(structure, result)


def _with_gaps(tree: Tree) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: x is None)


def _shards(x: Any) -> Mapping[Any, Any]:
    """Which part of an array each device holds; empty if it is not on a mesh."""
    sharding = getattr(x, "sharding", None)
    is_cut = isinstance(sharding, NamedSharding)
    return sharding.devices_indices_map(x.shape) if is_cut else {}


def _known(rules: Sequence[Resize]) -> Any:
    types = {rule.of for rule in rules if rule.rebuild}
    return lambda node: type(node) in types and bool(jax.tree.leaves(node))
