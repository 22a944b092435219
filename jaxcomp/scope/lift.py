"""Lift: turn a plan and a compressor of arrays into a compressor of trees."""

from typing import Any

import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Figure, Payload, Spec, State, Tree
from jaxcomp.scope.parts import Part, decoded, parts_of, parts_of_payloads
from jaxcomp.scope.plans import Plan, joined_spec, make_plan
from jaxcomp.scope.vectors import groups_of, to_arrays, to_tree
from jaxcomp.specs import Call
from jaxcomp.trees import wide_spec

__all__ = ["lift"]


def lift(scope: str | Call | Plan, compressor: str | Compressor = "none") -> Compressor:
    """A compressor of trees.

    Args:
      scope: spec string such as "only_large(min_size=1000)", or a `Plan`.
      compressor: a compressor of arrays, or its spec string. A `Plan` already has its
        compressors and ignores it.

    Returns:
      A `Compressor` whose x, x_hat and spec are trees, and whose payload is a tuple
      with one payload for each group, or one for all groups that their compressor can
      take together.

    Example:
      >>> import jax
      >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2)}
      >>> c = lift("whole_tree", "sign")
      >>> payload, _ = c.compress(tree, c.init(tree), jax.random.key(0))
      >>> len(payload), float(payload[0].scale)
      (1, 0.75)
    """
    plan = make_plan(scope, compressor)

    def vectors(spec: Spec) -> list[tuple[Compressor, Spec]]:
        """For each group its compressor and the spec of its vector."""
        return [(g.compressor, joined_spec(g)) for g in groups_of(plan, spec)]

    def init(spec: Spec) -> State:
        return tuple(c.init(vector) for c, vector in vectors(spec))

    def compress(tree: Tree, state: State, key: Array) -> tuple[Payload, State]:
        groups = groups_of(plan, tree)
        arrays, payloads, states = to_arrays(tree, groups), [], list(state)
        for part in parts_of(groups):
            x, old = part.take(arrays), part.take(state)
            payload, new = part.compressor.compress(x, old, part.keys(key, groups))
            payloads.append(part.packet(payload))
            part.put(new, states)
        return tuple(payloads), tuple(states)

    def decompress(payloads: Payload, spec: Spec) -> Tree:
        groups = groups_of(plan, spec)

        def decode(part: Part, payload: Payload) -> Any:
            return part.compressor.decompress(payload, part.spec(groups))

        return to_tree(decoded(payloads, groups, decode), groups, spec)

    def accumulate(total: Tree, payloads: Payload) -> Tree:
        groups = groups_of(plan, total)
        arrays = to_arrays(total, groups)

        def decode(part: Part, payload: Payload) -> Any:
            return part.compressor.accumulate(part.take(arrays), payload)

        return to_tree(decoded(payloads, groups, decode), groups, total)

    def clear(tree: Tree, payloads: Payload) -> Tree:
        groups = groups_of(plan, tree)
        arrays = to_arrays(tree, groups)

        def cleared(part: Part, payload: Payload) -> Any:
            assert part.compressor.clear is not None
            return part.compressor.clear(part.take(arrays), payload)

        return to_tree(decoded(payloads, groups, cleared), groups, tree)

    def decompress_sum(payloads: Payload, spec: Spec) -> Tree:
        groups = groups_of(plan, spec)

        def decode(part: Part, payload: Payload) -> Any:
            return part.compressor.decompress_sum(payload, part.spec(groups))

        return to_tree(decoded(payloads, groups, decode), groups, wide_spec(spec))

    def ideal_bits(spec: Spec) -> float:
        return sum((c.ideal_bits(vector) for c, vector in vectors(spec)), 0.0)

    def contraction(spec: Spec) -> float | None:
        deltas = [c.contraction(vector) for c, vector in vectors(spec)]
        known = [delta for delta in deltas if delta is not None]
        return min(known, default=1.0) if len(known) == len(deltas) else None

    def support(spec: Spec) -> int:
        return sum(c.support(vector) for c, vector in vectors(spec))

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
        clear=clear if all(c.clear for c in plan.compressors) else None,
    )


def _figures(plan: Plan) -> tuple[Figure, ...]:
    """The figures of all compressors of a plan, each summed over the groups."""

    def total(name: str) -> Figure:
        def of(payloads: Payload, spec: Spec) -> Array:
            groups = groups_of(plan, spec)
            found = [
                figure.of(payload, part.spec(groups)).astype(jnp.float32)
                for part, payload in parts_of_payloads(payloads, groups)
                for figure in part.compressor.figures
                if figure.name == name
            ]
            return sum(found, start=jnp.float32(0))

        return Figure(name, of)

    names = dict.fromkeys(f.name for c in plan.compressors for f in c.figures)
    return tuple(total(name) for name in names)
