"""What several exchanges need: own payloads, the report of one step, names."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import (
    Array,
    Axis,
    Compressor,
    Info,
    Payload,
    PerWorker,
    Spec,
    Tree,
    spec_of,
)
from jaxcomp.exchanges import collectives
from jaxcomp.scope import Group, Plan, groups_of
from jaxcomp.scope.plans import joined_spec

__all__ = [
    "by_leaf",
    "compress_own",
    "figure_names",
    "leaf_choices",
    "leaf_contractions",
    "measure",
    "refuse_growth",
    "squared_norm",
    "with_method",
]


def compress_own(
    codec: Compressor, tree: Tree, state: PerWorker, key: Array, axis: Axis
) -> tuple[Payload, PerWorker]:
    """This worker's payload, with a key and a state of its own.

    Args:
      codec: compressor of trees.
      tree: of this worker.
      state: of the codec on this worker.
      key: the same on every worker.
      axis: the mapped axis.
    """
    own_key = jax.random.fold_in(key, collectives.index(axis))
    payload, new = codec.compress(tree, state.value, own_key)
    return payload, PerWorker(new)


def squared_norm(tree: Tree) -> Array:
    """Sum of the squares of all elements, in float32.

    Example:
        >>> squared_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0])})
        Array(25., dtype=float32)
    """
    leaves = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return sum(leaves, start=jnp.float32(0))


def measure(
    given: Tree, sent: Tree, codec: Compressor | None = None, payload: Payload = None
) -> Info:
    """`Info` of one exchange: |given - sent|^2 / |given|^2, 0 for a zero tree.

    Args:
      given: what the exchange was given.
      sent: what it charges to this worker.
      codec: the compressor whose figures of `payload` are reported too.
      payload: of this worker.
    """
    error = squared_norm(jax.tree.map(lambda g, s: g - s, given, sent))
    norm = squared_norm(given)
    relative = error / jnp.where(norm == 0, 1.0, norm)
    spec = spec_of(given)
    figures = codec.figures if codec else ()
    extra = {figure.name: figure.of(payload, spec) for figure in figures}
    return Info(relative, jnp.sqrt(error), residual_norm=jnp.float32(0), extra=extra)


def figure_names(codec: Compressor) -> tuple[str, ...]:
    """What `measure` puts into `Info.extra` for a codec."""
    return tuple(figure.name for figure in codec.figures)


def leaf_contractions(plan: Plan, spec: Spec) -> list[float | None]:
    """For each leaf, the contraction of the compressor of its group.

    Example:
        >>> from jaxcomp.compressors import make
        >>> from jaxcomp.scope import only_large
        >>> tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 8))}
        >>> leaf_contractions(only_large(make("sign"), min_size=9), tree)
        [1.0, 0.0625]
    """
    groups = groups_of(plan, spec)
    deltas = [g.compressor.contraction(joined_spec(g)) for g in groups]
    return by_leaf(groups, deltas, spec, nothing=1.0)


def leaf_choices(plan: Plan, spec: Spec) -> list[bool]:
    """For each leaf, whether the compressor of its group sends some elements only.

    Example:
        >>> from jaxcomp.compressors import make
        >>> from jaxcomp.scope import only_large
        >>> tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 8))}
        >>> leaf_choices(only_large(make("top_k"), min_size=9), tree)
        [False, True]
    """
    groups = groups_of(plan, spec)
    specs = [joined_spec(group) for group in groups]
    pairs = zip(groups, specs, strict=True)
    chosen = [g.compressor.support(joined) < joined.size for g, joined in pairs]
    return by_leaf(groups, chosen, spec, nothing=False)


def by_leaf(
    groups: list[Group], facts: Sequence[Any], spec: Spec, nothing: Any
) -> list[Any]:
    """For each leaf of a tree the fact of its group.

    Args:
      groups: of the tree.
      facts: one for each group.
      spec: of the tree.
      nothing: the fact of leaves without elements, which are in no group.
    """
    result = [nothing] * len(jax.tree.leaves(spec))
    for group, fact in zip(groups, facts, strict=True):
        for leaf in group.leaves:
            result[leaf.place] = fact
    return result


def refuse_growth(
    contraction: Sequence[float | None],
    spec: Spec,
    *,
    loser: str,
    keeper: str,
    way_out: str,
) -> None:
    """Refuse a loss that may be larger than what it is taken from.

    Where what is lost is kept, it is compressed again with the next gradient, so it
    would grow from step to step.

    Args:
      contraction: of each leaf.
      spec: of the tree.
      loser: name of what loses.
      keeper: name of what keeps that.
      way_out: the end of the message: what else one may do.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(spec)
    pairs = zip(paths, contraction, strict=True)
    bad = [(path, leaf) for (path, leaf), delta in pairs if delta is None]
    if not bad:
        return
    path, leaf = max(bad, key=lambda pair: pair[1].size)
    tensor = jax.tree_util.keystr(path, simple=True, separator="/") or "the tensor"
    others = f", as of {len(bad) - 1} others" if len(bad) > 1 else ""
    message = (
        f"of {tensor}, with {leaf.size} elements, {loser!r} may lose more than there "
        f"is{others}: what {keeper!r} keeps of it would grow without end. Take memory "
        "'none' if the method is unbiased; or a compressor with a contraction, such as "
        f"'top_k', 'sign' or 'qsgd(levels=7, damped=True)'; or {way_out}"
    )
    raise ValueError(message)


def with_method(exchange: str, method: str) -> str:
    """The name of an exchange together with what it sends.

    Example:
        >>> with_method("gather", "sign"), with_method("two_phase(a=1)", "sign")
        ('gather(sign)', 'two_phase(a=1; sign)')
    """
    head, _, arguments = exchange.removesuffix(")").partition("(")
    return f"{head}({arguments + '; ' if arguments else ''}{method})"
