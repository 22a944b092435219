"""Hierarchical: dense messages inside a host, compressed ones between hosts."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core import types
from jaxcomp.core.coding.packing import pack, unpack
from jaxcomp.core.specs import Call, Count, Shown, SpecError, method
from jaxcomp.core.trees import cast_like, spec_of, wide_spec
from jaxcomp.core.types import Array, Averaged, Axis, Exchange, Spec, State, Tree
from jaxcomp.exchanges._common import gather_trees, make, measure
from jaxcomp.exchanges._rows import in_own_row, to_rows
from jaxcomp.parallel import collectives
from jaxcomp.parallel.collectives import AxisPart, Lanes
from jaxcomp.scope import Plan, plans
from jaxcomp.scope.contraction import by_leaf

_PROBE = {"w": jax.ShapeDtypeStruct((64, 64), "float32")}


class HierarchicalState(NamedTuple):
    """State of `hierarchical`."""

    inner: State
    outer: State


def _outer_name(outer: str | Call | Exchange, arguments: Mapping[str, Any]) -> str:
    probe = _between(arguments["plan"], outer, "workers", _PROBE)
    return probe.name.replace("'", "")


@method("outer", given=2)
def hierarchical(
    name: str,
    plan: Plan,
    axis: Axis,
    inner: Annotated[str | Call, Shown(lambda inner, _: str(inner))] = "exact",
    outer: Annotated[str | Call | Exchange, Shown(_outer_name)] = "gather",
    per_host: Count | None = None,
) -> Exchange:
    """Average inside each host by one exchange, then between hosts by another.

    The L workers of a host average their trees by the inner exchange. Then each vector
    is cut into L parts, and worker j of every host averages part j with the workers j
    of the other hosts, by the outer exchange. So a host sends one compressed tree in
    all, in L parts. At the end the workers of a host gather the parts. What the outer
    exchange loses of a part counts as not sent by the worker that has this part. The
    outer exchange owes nothing, so with another number of workers each takes its state
    from the worker of the same place.

    Args:
      plan: which tensors are compressed as one vector, and how, between hosts.
      axis: the mapped axis, whose neighbours share a host; or two, (hosts, workers of
        one host), as in a mesh of two axes.
      inner: spec of an exchange that compresses nothing: "exact".
      outer: spec of the exchange between hosts.
      per_host: L; default: the devices of this process.

    References:
      Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, 2017 (section 4).
    """
    inside, across, share = _hosts(axis, per_host)
    within = make(inner, axis=inside)
    _check("inner", within)
    # So large that an exchange which compresses large tensors only compresses it too.
    large = jax.ShapeDtypeStruct((1 << 20, 1 << 20), "float32")
    if within.contraction({"w": large}) != [1]:
        raise SpecError(
            f"the inner exchange of hierarchical has to send everything as it is, and "
            f"{within.name!r} does not: take 'exact'"
        )
    way = _Hierarchical(plan, within, outer, inside, across, share)
    probe = way.between(_PROBE)
    vector = jax.ShapeDtypeStruct((1 << 40,), "float32")
    # Only those without a compressor are asked: others may take long to answer.
    if probe.ignores_compressor and (
        probe.contraction({"w": vector}) == [1] != probe.contraction({"w": large})
    ):
        raise SpecError(
            f"the outer exchange of hierarchical is given vectors, and {probe.name!r} "
            "compresses matrices: take one such as 'gather', 'shared_scale' or "
            "'two_phase'"
        )
    return Exchange(
        name,
        init=way.init,
        average=way.average,
        axis=axis,
        figures=probe.figures,
        contraction=way.contraction,
        chooses=way.chooses,
        ignores_compressor=probe.ignores_compressor,
        resize=(types.Resize(HierarchicalState, handed_on=("outer",)),),
        per_host=share,
    )


def _hosts(axis: Axis, per_host: int | None) -> tuple[Axis, Axis, int]:
    """The axis inside a host, that between hosts, and the workers of a host."""
    if isinstance(axis, AxisPart):
        raise SpecError("divides workers into hosts once, not in another hierarchical")
    shared = isinstance(axis, Lanes)
    if shared and not per_host:
        message = "several workers share a device: say how many of them are on a host"
        raise SpecError(f"{message}, hierarchical(per_host=...)")
    share = per_host or jax.local_device_count()
    if isinstance(axis, tuple) and not shared:
        across, inside = axis
        return inside, across, share
    inside = AxisPart(axis, share, inside=True)
    return inside, inside._replace(inside=False), share


class _Hierarchical(NamedTuple):
    """The functions of the exchange; `hierarchical` explains its arguments."""

    plan: Plan
    within: Exchange
    outer: str | Call | Exchange
    inside: Axis
    across: Axis
    share: int

    def between(self, tree: Tree) -> Exchange:
        return _between(self.plan, self.outer, self.across, tree)

    def parts(self, spec: Spec) -> tuple[Spec, ...]:
        """What one worker gives to the outer exchange: its part of each vector."""
        joined = map(plans.joined_spec, plans.groups_of(self.plan, wide_spec(spec)))
        sizes = [(-(-vector.size // self.share), vector.dtype) for vector in joined]
        return tuple(jax.ShapeDtypeStruct((size,), dtype) for size, dtype in sizes)

    def contraction(self, spec: Spec) -> list[float | None]:
        deltas = self.between(spec).contraction(self.parts(spec))
        return by_leaf(plans.groups_of(self.plan, spec), deltas, spec, nothing=1.0)

    def chooses(self, spec: Spec) -> list[bool]:
        chosen = self.between(spec).chooses(self.parts(spec))
        return by_leaf(plans.groups_of(self.plan, spec), chosen, spec, nothing=False)

    def init(self, tree: Tree) -> State:
        # Workers of a host average different parts, so their outer states differ, even
        # where the outer exchange has one state for all of its workers.
        outer_state = self.between(tree).init(self.parts(spec_of(tree)))
        return types.PerWorker(HierarchicalState(self.within.init(tree), outer_state))

    def average(self, tree: Tree, state: State, key: Array) -> Averaged:
        inside, share = self.inside, self.share
        if collectives.size(inside) != share:
            message = f"the axis has {collectives.size(inside)} workers, not {share}"
            raise SpecError(f"{message}: give per_host")
        spec, wide = spec_of(tree), wide_spec(spec_of(tree))
        groups = plans.groups_of(self.plan, tree)
        inner_key, outer_key = jax.random.split(key)
        given = cast_like(tree, wide)
        host = self.within.average(given, state.value.inner, inner_key)
        place = collectives.index(inside)
        parts = tuple(
            to_rows(v, share)[place] for v in plans.to_vectors(host.mean, groups)
        )
        # Workers with the same part share a key, workers of one host do not.
        outer_key = jax.random.fold_in(outer_key, place)
        result = self.between(tree).average(parts, state.value.outer, outer_key)

        rows = gather_trees(result.mean, inside, alike=True)
        mean = plans.to_tree(rows, groups, spec)
        missing = jax.tree.map(
            lambda part, sent: in_own_row((part - sent) * share, inside),
            parts,
            result.sent,
        )
        lost = plans.to_tree(missing, groups, wide)
        sent = cast_like(jax.tree.map(jnp.subtract, host.sent, lost), spec)
        info = measure(tree, sent)._replace(extra=result.info.extra)
        state = types.PerWorker(HierarchicalState(host.state, result.state))
        out = result.sent if result.own_sent is None else result.own_sent
        own_sent = plans.to_tree(_not_zero(out, inside), groups, spec)
        return Averaged(mean, sent, state, info, own_sent)


def _between(
    plan: Plan, outer: str | Call | Exchange, across: Axis, tree: Tree
) -> Exchange:
    """The outer exchange, for a tuple with one part of each vector."""
    parts = plans.vectors_plan(plans.groups_of(plan, tree), plan.title)
    # Figures are those of the whole plan, whichever tensors there are.
    parts = parts._replace(compressors=plan.compressors)
    exchange = make(outer, scope=parts, axis=across)
    _check("outer", exchange)
    return exchange


def _not_zero(parts: tuple[Array, ...], inside: Axis) -> list[Array]:
    """For each vector 1.0 where it is not zero, and 0.0 elsewhere.

    It takes one bit an element inside the host. Where no memory reads the result, the
    compiler leaves the message out.

    Args:
      parts: of each vector this worker's part, [m].
      inside: the workers of the host, which have the other parts.
    """

    def unpacked(rows: Array, part: Array) -> Array:
        flags = jax.vmap(functools.partial(unpack, bits=1, size=part.size))(rows)
        return flags.astype(jnp.float32)

    rows = gather_trees(tuple(pack(part != 0, bits=1) for part in parts), inside)
    return [unpacked(*pair) for pair in zip(rows, parts, strict=True)]


def _check(which: str, exchange: Exchange) -> None:
    """Refuse an exchange whose `sent` does not tell what was lost."""
    if exchange.held or not exchange.lawful:
        raise SpecError(
            f"the {which} exchange of hierarchical has to be lawful and hold nothing "
            f"back, and {exchange.name!r} is not like that"
        )
