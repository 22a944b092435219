"""What several exchanges need: own payloads, the report of one step, names."""

from collections.abc import Callable, Iterable, Sequence
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
    widen,
)
from jaxcomp.exchanges import collectives
from jaxcomp.norms import norm
from jaxcomp.scope import Group, Plan, groups_of
from jaxcomp.scope.plans import joined_spec

__all__ = [
    "by_leaf",
    "compress_own",
    "figure_names",
    "leaf_choices",
    "leaf_contractions",
    "measure",
    "nothing_lost",
    "refuse_growth",
    "report",
    "with_method",
    "worst",
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
    missing = jax.tree.map(jnp.subtract, widen(given), widen(sent))
    spec = spec_of(given)
    figures = codec.figures if codec else ()
    extra = {figure.name: figure.of(payload, spec) for figure in figures}
    return report(norm(missing), norm(given))._replace(extra=extra)


def report(lost: Array, whole: Array) -> Info:
    """`Info` of the norms of what is lost and of what was given.

    Norms, for their squares leave float32 long before a gradient does.
    """
    relative = jnp.square(lost / jnp.where(whole == 0, 1.0, whole))
    return Info(relative, lost, residual_norm=jnp.float32(0))


def nothing_lost(figures: tuple[str, ...] = ()) -> Info:
    """`Info` of what loses nothing; a method's figures are 0."""
    zero = jnp.zeros((), jnp.float32)
    return Info(zero, zero, zero, dict.fromkeys(figures, zero))


def figure_names(codec: Compressor) -> tuple[str, ...]:
    """What `measure` puts into `Info.extra` for a codec."""
    return tuple(figure.name for figure in codec.figures)


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
    tensor = jax.tree_util.keystr(path, simple=True, separator="/") or "the tensor"
    others = f", as of {len(bad) - 1} others" if len(bad) > 1 else ""
    message = (
        f"of {tensor}, with {leaf.size} elements, {loser!r} may lose more than there "
        f"is{others}: what {keeper!r} keeps of it would grow without end. Take a "
        "compressor with a contraction, such as 'top_k', 'sign' or "
        f"'qsgd(levels=7, damped=True)'; or {way_out}"
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
