"""Two-phase: a compressed all-reduce whose traffic does not grow with the workers."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core import trees, types
from jaxcomp.core.specs import SpecError, method
from jaxcomp.core.trees import by_shards, cast_like, spec_of, wide_spec, widen
from jaxcomp.core.types import Array, Averaged, Axis, Exchange, PerWorker, Spec, Tree
from jaxcomp.exchanges._common import check_wide, measure, with_method
from jaxcomp.exchanges._rows import halves, in_own_row, reduce_rows, to_rows, widths
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift, plans
from jaxcomp.scope.contraction import leaf_choices, leaf_contractions, refuse_growth


class ServerState(NamedTuple):
    """State of `two_phase` with error feedback of the owners' answers."""

    held: PerWorker  # a tree; zero outside the part that this worker owns


@method(given=2)
def two_phase(
    name: str,
    plan: Plan,
    axis: Axis,
    server_feedback: bool = False,
    allow: bool = False,
) -> Exchange:
    """Each worker owns a part of each vector, which it averages for all workers.

    Vectors are cut into N parts. Part j of every worker goes to worker j, its owner, by
    an all-to-all. The owner decodes and adds the parts, compresses the sum
    s_j = sum_i D(C(g_ij)) and sends it to all, by an all-gather: mean_j =
    D(C(s_j)) / N. A worker sends `nbits(payload)` and an N-th of it, and receives about
    twice `nbits(payload)`, whatever N is.

    The owner's answer loses s_j - D(C(s_j)), which is subtracted from what the owner
    itself has `sent`. So the mean over workers of `sent` equals `mean`, and a memory
    keeps the errors of both compressions. With `server_feedback` the owner keeps this
    error itself and adds it, uncompressed, to its next sum. With another number of
    workers each element of these errors goes to its new owner. Its mean over the
    workers stays.

    Args:
      plan: which tensors are compressed as one vector, and how; without state.
      axis: the mapped axis.
      server_feedback: error feedback of the answers, as in DoubleSqueeze.
      allow: accept a compressor that is not a contraction, as in `error_feedback`.

    References:
      Tang et al., DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass
      Error-Compensated Compression, arXiv:1905.05957, 2019. Tang et al., 1-bit Adam,
      arXiv:2102.02888, 2021.
    """
    way = _TwoPhase(name, plan, axis, server_feedback, allow)
    resize = types.Resize(ServerState, rebuild=way.rebuild)
    return Exchange(
        with_method(name, plan.title),
        init=way.init,
        average=way.average,
        axis=axis,
        held=(lambda state: state.held.value) if server_feedback else None,
        contraction=way.contraction,
        chooses=functools.partial(leaf_choices, plan),
        resize=(resize,) if server_feedback else (),
    )


class _TwoPhase(NamedTuple):
    """The functions of the exchange; `two_phase` explains its arguments."""

    name: str
    plan: Plan
    axis: Axis
    server_feedback: bool
    allow: bool

    def contraction(self, spec: Spec) -> list[float | None]:
        return leaf_contractions(self.plan, spec, of=_of_any_row)

    def init(self, tree: Tree) -> types.State:
        title = self.plan.title
        if jax.tree.leaves(lift(self.plan).init(spec_of(tree))):
            raise SpecError(
                f"two_phase cuts vectors into as many parts as there are workers, so "
                f"it takes compressors without state, and {title!r} has one"
            )
        if not self.server_feedback:
            return ()
        spec = spec_of(tree)
        way_out = "leave out server_feedback, or add allow=True to try it all the same"
        if not self.allow:
            deltas = self.contraction(spec)
            names = {"loser": title, "keeper": self.name}
            refuse_growth(deltas, spec, way_out=way_out, **names)
        return ServerState(PerWorker(trees.zeros_like_spec(wide_spec(spec))))

    def average(self, tree: Tree, state: types.State, key: Array) -> Averaged:
        axis, spec, wide = self.axis, spec_of(tree), wide_spec(spec_of(tree))
        groups = plans.groups_of(self.plan, tree)
        count = collectives.size(axis)
        rows = tuple(to_rows(v, count) for v in plans.to_vectors(tree, groups))
        if self.server_feedback:
            owed = plans.to_vectors(state.held.value, plans.groups_of(self.plan, wide))
            held = tuple(to_rows(v, count)[collectives.index(axis)] for v in owed)
        else:
            held = tuple(jnp.zeros(s.shape[1:], s.dtype) for s in wide_spec(rows))
        codec = lift(plans.vectors_plan(groups, self.plan.title))
        reduced = reduce_rows(rows, codec, held, axis, key)
        mean = plans.to_tree(reduced.mean, groups, spec)
        sent = first = plans.to_tree(reduced.first, groups, wide)
        own_rows = [in_own_row(row, axis) for row in reduced.missing]
        lost = plans.to_tree(own_rows, groups, wide)
        if self.server_feedback:
            state = ServerState(PerWorker(lost))
        else:
            sent = jax.tree.map(jnp.subtract, sent, lost)
        missing = jax.tree.map(jnp.subtract, widen(tree), sent)
        info = measure(tree, sent, missing=missing)
        sent = cast_like(sent, spec)
        return Averaged(mean, sent, state, info, own_sent=first, missing=missing)

    def rebuild(self, state: ServerState, params: Tree, workers: int) -> ServerState:
        check_wide(params, self.name)
        mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), state.held.value)

        def dealt(mean: Tree) -> Tree:
            groups = plans.groups_of(self.plan, mean)
            rows = [to_rows(v, workers) for v in plans.to_vectors(mean, groups)]

            def of(i: Array) -> Tree:
                own = [jnp.zeros_like(r).at[i].set(workers * r[i]) for r in rows]
                return plans.to_tree(own, groups, spec_of(mean))

            return jax.vmap(of)(jnp.arange(workers))

        # A device cuts the vectors of its shards.
        return ServerState(PerWorker(by_shards(dealt, mean, params, workers)))


def _of_any_row(compressor: types.Compressor, spec: Spec) -> float | None:
    """1 if no row loses anything, None if the error of one has no bound, else 0.

    The number of workers is not known here, so rows of all lengths are asked. Workers
    send rows in the vector's dtype, owners answer in at least float32.
    """
    dtypes = {spec.dtype, wide_spec(spec).dtype}

    def of(length: int) -> float | None:
        row = functools.partial(jax.ShapeDtypeStruct, (length,))
        return types.worst(compressor.contraction(row(dtype)) for dtype in dtypes)

    if all(of(length) == 1 for length in sorted(widths(spec.size), reverse=True)):
        return 1.0
    # Fewer lengths, because a composition of compressors takes milliseconds to answer.
    return None if any(of(length) is None for length in halves(spec.size)) else 0.0
