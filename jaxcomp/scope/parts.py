"""Parts of a plan: groups that share a compressor and are compressed together."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Payload, Spec
from jaxcomp.scope.plans import Group, joined_spec

__all__ = ["Part", "Together", "decoded", "parts_of", "parts_of_payloads"]

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
