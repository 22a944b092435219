"""Lift: from a plan and a compressor of arrays to a compressor of trees."""

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Figure, Payload, Spec, State, Tree
from jaxcomp.scope.plans import Plan, joined_spec, make_plan
from jaxcomp.scope.vectors import groups_of, to_arrays, to_tree
from jaxcomp.specs import Call
from jaxcomp.trees import wide_spec

__all__ = ["lift"]


def lift(scope: str | Call | Plan, compressor: str | Compressor = "none") -> Compressor:
    """A compressor of trees.

    Args:
      scope: spec string such as "only_large(min_size=1000)", or a `Plan`.
      compressor: a compressor of arrays, or its spec string; a ready `Plan` has its
        own.

    Returns:
      A `Compressor` whose x, x_hat and spec are trees, and whose payload is a tuple
      with one payload for each group.

    Example:
      >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2)}
      >>> c = lift("whole_tree", "sign")
      >>> payload, _ = c.compress(tree, c.init(tree), jax.random.key(0))
      >>> len(payload), float(payload[0].scale)
      (1, 0.75)
    """
    plan = make_plan(scope, compressor)

    def init(spec: Spec) -> State:
        return tuple(g.compressor.init(joined_spec(g)) for g in groups_of(plan, spec))

    def compress(tree: Tree, state: State, key: Array) -> tuple[Payload, State]:
        groups, payloads, states = groups_of(plan, tree), [], []
        triples = zip(groups, to_arrays(tree, groups), state, strict=True)
        for i, (group, x, old) in enumerate(triples):
            payload, new = group.compressor.compress(x, old, jax.random.fold_in(key, i))
            payloads.append(payload)
            states.append(new)
        return tuple(payloads), tuple(states)

    def decompress(payloads: Payload, spec: Spec) -> Tree:
        groups = groups_of(plan, spec)
        pairs = zip(groups, payloads, strict=True)
        arrays = [g.compressor.decompress(p, joined_spec(g)) for g, p in pairs]
        return to_tree(arrays, groups, spec)

    def accumulate(total: Tree, payloads: Payload) -> Tree:
        groups = groups_of(plan, total)
        triples = zip(groups, to_arrays(total, groups), payloads, strict=True)
        arrays = [g.compressor.accumulate(x, p) for g, x, p in triples]
        return to_tree(arrays, groups, total)

    def decompress_sum(payloads: Payload, spec: Spec) -> Tree:
        groups = groups_of(plan, spec)
        pairs = zip(groups, payloads, strict=True)
        arrays = [g.compressor.decompress_sum(p, joined_spec(g)) for g, p in pairs]
        return to_tree(arrays, groups, wide_spec(spec))

    def ideal_bits(spec: Spec) -> float:
        groups = groups_of(plan, spec)
        return sum((g.compressor.ideal_bits(joined_spec(g)) for g in groups), 0.0)

    def contraction(spec: Spec) -> float | None:
        groups = groups_of(plan, spec)
        deltas = [g.compressor.contraction(joined_spec(g)) for g in groups]
        known = [delta for delta in deltas if delta is not None]
        return min(known, default=1.0) if len(known) == len(deltas) else None

    def support(spec: Spec) -> int:
        groups = groups_of(plan, spec)
        return sum(g.compressor.support(joined_spec(g)) for g in groups)

    return Compressor(
        name=plan.title,
        init=init,
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        decompress_sum=decompress_sum,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=all(c.unbiased for c in plan.compressors),
        aligned=all(c.aligned for c in plan.compressors),
        support=support,
        figures=_figures(plan),
    )


def _figures(plan: Plan) -> tuple[Figure, ...]:
    """Each figure of any of the plan's compressors, summed over the groups."""

    def total(name: str) -> Figure:
        def of(payloads: Payload, spec: Spec) -> Array:
            found = [
                figure.of(payload, joined_spec(group)).astype(jnp.float32)
                for group, payload in zip(groups_of(plan, spec), payloads, strict=True)
                for figure in group.compressor.figures
                if figure.name == name
            ]
            return sum(found, start=jnp.float32(0))

        return Figure(name, of)

    names = dict.fromkeys(f.name for c in plan.compressors for f in c.figures)
    return tuple(total(name) for name in names)
