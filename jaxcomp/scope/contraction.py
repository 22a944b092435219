"""How much of each leaf a method may lose, and which losses no memory may keep."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import label_of
from jaxcomp.core.types import Compressor, Spec
from jaxcomp.scope.plans import Group, Plan, groups_of, joined_spec


def leaf_contractions(
    plan: Plan,
    spec: Spec,
    of: Callable[[Compressor, Spec], float | None] = lambda c, x: c.contraction(x),
) -> list[float | None]:
    """For each leaf, the contraction of the compressor of its group.

    Args:
      plan: which tensors are compressed as one vector, and how.
      spec: of the tree.
      of: (compressor, spec of the vector) -> contraction, for exchanges that do more
        to the vector than this compressor does.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp.compressors import make
      >>> from jaxcomp.scope import only_large
      >>> tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 8))}
      >>> leaf_contractions(only_large(make("sign"), min_size=9), tree)
      [1.0, 0.0625]
    """
    return _of_leaves(plan, spec, of, nothing=1.0)


def leaf_choices(
    plan: Plan,
    spec: Spec,
    of: Callable[[Compressor, Spec], bool] = lambda c, x: c.support(x) < x.size,
) -> list[bool]:
    """For each leaf, whether the compressor of its group sends only some elements.

    Args:
      plan: which tensors are compressed as one vector, and how.
      spec: of the tree.
      of: (compressor, spec of the vector) -> whether it does.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp.compressors import make
      >>> from jaxcomp.scope import only_large
      >>> tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 8))}
      >>> leaf_choices(only_large(make("top_k"), min_size=9), tree)
      [False, True]
    """
    return _of_leaves(plan, spec, of, nothing=False)


def split_lossless(groups: list[Group]) -> tuple[list[Group], list[Group]]:
    """The groups of which nothing is lost, and those of which something is."""
    lossless: list[Group] = []
    lossy: list[Group] = []
    for group in groups:
        delta = group.compressor.contraction(joined_spec(group))
        (lossless if delta == 1 else lossy).append(group)
    return lossless, lossy


def by_leaf(
    groups: list[Group], facts: Sequence[Any], spec: Spec, nothing: Any
) -> list[Any]:
    """For each leaf of a tree what is known of its group.

    Args:
      groups: of the tree.
      facts: what is known, one for each group.
      spec: of the tree.
      nothing: what holds for leaves without elements, which are in no group.
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
    """Refuse compressors whose error may be larger than their input.

    A memory adds the error of a step to the next gradient and compresses the sum. If
    the error may be larger than the input, it grows from step to step.

    Args:
      contraction: of each leaf.
      spec: of the tree.
      loser: name of the method that compresses, for the message.
      keeper: name of the memory.
      way_out: what else one may do; the end of the message.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(spec)
    pairs = zip(paths, contraction, strict=True)
    bad = [(path, leaf) for (path, leaf), delta in pairs if delta is None]
    if not bad:
        return
    path, leaf = max(bad, key=lambda pair: pair[1].size)
    tensor = label_of(path)
    others = f", as of {len(bad) - 1} others" if len(bad) > 1 else ""
    raise SpecError(
        f"of {tensor}, with {leaf.size} elements, {loser!r} may lose more than there "
        f"is{others}: what {keeper!r} keeps of it would grow without end. Take a "
        "compressor with a contraction, such as 'top_k', 'sign' or "
        f"'qsgd(levels=7, damped=True)'; or {way_out}"
    )


def _of_leaves(
    plan: Plan, spec: Spec, of: Callable[[Compressor, Spec], Any], nothing: Any
) -> list[Any]:
    """For each leaf what `of` says of its group."""
    groups = groups_of(plan, spec)
    facts = [of(group.compressor, joined_spec(group)) for group in groups]
    return by_leaf(groups, facts, spec, nothing)
