"""How much may be lost of each leaf, and who must not keep what is lost."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from jaxcomp.base import Compressor, Spec
from jaxcomp.scope import Group, Plan, groups_of
from jaxcomp.scope.plans import joined_spec
from jaxcomp.specs import SpecError
from jaxcomp.trees import label_of

__all__ = [
    "by_leaf",
    "leaf_choices",
    "leaf_contractions",
    "refuse_growth",
    "worst",
]


def leaf_contractions(
    plan: Plan,
    spec: Spec,
    of: Callable[[Compressor, Spec], float | None] = lambda c, x: c.contraction(x),
) -> list[float | None]:
    """For each leaf, the contraction of the compressor of its group.

    Args:
      plan: which tensors are compressed as one vector, and how.
      spec: of the tree.
      of: (compressor, spec of the vector) -> contraction, where it is not compressed
        by just this compressor as just this vector.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxcomp.compressors import make
        >>> from jaxcomp.scope import only_large
        >>> tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 8))}
        >>> leaf_contractions(only_large(make("sign"), min_size=9), tree)
        [1.0, 0.0625]
    """
    groups = groups_of(plan, spec)
    deltas = [of(group.compressor, joined_spec(group)) for group in groups]
    return by_leaf(groups, deltas, spec, nothing=1.0)


def leaf_choices(
    plan: Plan,
    spec: Spec,
    of: Callable[[Compressor, Spec], bool] = lambda c, x: c.support(x) < x.size,
) -> list[bool]:
    """For each leaf, whether the compressor of its group sends some elements only.

    Args:
      plan: which tensors are compressed as one vector, and how.
      spec: of the tree.
      of: (compressor, spec of the vector) -> whether, as in `leaf_contractions`.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxcomp.compressors import make
        >>> from jaxcomp.scope import only_large
        >>> tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 8))}
        >>> leaf_choices(only_large(make("top_k"), min_size=9), tree)
        [False, True]
    """
    groups = groups_of(plan, spec)
    chosen = [of(group.compressor, joined_spec(group)) for group in groups]
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


def worst(contractions: Iterable[float | None]) -> float | None:
    """What holds of all: the least, or None where one is not bounded.

    Example:
        >>> worst([1.0, 0.5]), worst([1.0, None])
        (0.5, None)
    """
    every = list(contractions)
    known = [delta for delta in every if delta is not None]
    return min(known) if len(known) == len(every) else None


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
    tensor = label_of(path)
    others = f", as of {len(bad) - 1} others" if len(bad) > 1 else ""
    message = (
        f"of {tensor}, with {leaf.size} elements, {loser!r} may lose more than there "
        f"is{others}: what {keeper!r} keeps of it would grow without end. Take a "
        "compressor with a contraction, such as 'top_k', 'sign' or "
        f"'qsgd(levels=7, damped=True)'; or {way_out}"
    )
    raise SpecError(message)
