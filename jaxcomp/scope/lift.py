"""A plan as a compressor of trees; groups with one compressor go at once."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.specs import Call
from jaxcomp.core.trees import wide_spec
from jaxcomp.core.types import Array, Compressor, Figure, Payload, Spec, State, Tree
from jaxcomp.scope.plans import (
    Group,
    Plan,
    groups_of,
    joined_spec,
    make_plan,
    to_arrays,
    to_tree,
)

# Places in the rows of a part are 32-bit numbers, and its rows are a copy in memory.
_LARGEST = 1 << 30


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["payload"],
    meta_fields=["members"],
)
@dataclasses.dataclass(frozen=True)
class Together:
    """The payload of several groups.

    It says which groups they are: whoever decodes it may ask for wider dtypes, and the
    parts depend on those that were compressed.
    """

    payload: Payload
    members: tuple[int, ...]


class Part(NamedTuple):
    """Some groups of a plan, and the compressor that takes them."""

    members: tuple[int, ...]  # numbers of the groups, ascending
    compressor: Compressor  # of one array, or of a tuple of arrays
    is_segmented: bool  # whether it takes a tuple

    def take(self, items: Sequence[Any]) -> Any:
        """What the compressor takes, from a list with an item for each group."""
        own = tuple(items[i] for i in self.members)
        return own if self.is_segmented else own[0]

    def put(self, result: Any, items: list[Any]) -> None:
        """The inverse of `take`: write what the compressor returned into a list."""
        own = result if self.is_segmented else (result,)
        for i, item in zip(self.members, own, strict=True):
            items[i] = item

    def spec(self, groups: Sequence[Group]) -> Spec:
        """The spec of what the compressor takes."""
        return self.take([joined_spec(group) for group in groups])

    def keys(self, key: Array, groups: Sequence[Group]) -> Array:
        """The key of each group, for what the compressor takes.

        They depend on the number of the group alone, not on who is in its part.
        """
        numbers = [groups[i].number for i in self.members]
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.array(numbers))
        return keys if self.is_segmented else keys[0]

    def packet(self, payload: Payload) -> Payload:
        """The payload, with the numbers of the groups if they are several."""
        return Together(payload, self.members) if self.is_segmented else payload


def parts_of(groups: Sequence[Group]) -> list[Part]:
    """Groups with the same compressor and dtype together, if it has a segmented form.

    A part has at most 2^30 elements, unless a single group has more.
    """
    families: dict[tuple[Any, ...], list[int]] = {}
    elements: dict[tuple[Any, ...], int] = {}
    for i, group in enumerate(groups):
        spec, key = joined_spec(group), (i,)
        if group.compressor.segmented is not None:
            key = (id(group.compressor), spec.dtype, 0)
            while key in families and elements[key] + spec.size > _LARGEST:
                key = (*key[:2], key[2] + 1)
        families.setdefault(key, []).append(i)
        elements[key] = elements.get(key, 0) + spec.size
    return [_part(groups, tuple(members)) for members in families.values()]


def parts_of_payloads(
    payloads: Iterable[Payload], groups: Sequence[Group]
) -> Iterator[tuple[Part, Payload]]:
    """Each payload of `parts_of`, with the part that it belongs to."""
    payloads = list(payloads)
    joint = {i for item in payloads if isinstance(item, Together) for i in item.members}
    alone = iter([i for i in range(len(groups)) if i not in joint])
    for item in payloads:
        if isinstance(item, Together):
            yield _part(groups, item.members), item.payload
        else:
            yield _part(groups, (next(alone),)), item


def decoded(
    payloads: Iterable[Payload],
    groups: Sequence[Group],
    decode: Callable[[Part, Payload], Any],
) -> list[Any]:
    """For each group the array that `decode` makes of the payload of its part."""
    arrays: list[Any] = [None] * len(groups)
    for part, payload in parts_of_payloads(payloads, groups):
        part.put(decode(part, payload), arrays)
    return arrays


def _part(groups: Sequence[Group], members: tuple[int, ...]) -> Part:
    compressor = groups[members[0]].compressor
    if len(members) > 1:
        assert compressor.segmented is not None
        return Part(members, compressor.segmented, is_segmented=True)
    return Part(members, compressor, is_segmented=False)


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
