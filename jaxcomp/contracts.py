"""What the functions of a method promise: one callable type for each, with its law.

`jaxcomp.base` puts these together into compressors, exchanges and mixers. "Array" reads
as "tree" wherever a scope has lifted a compressor to trees.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax

if TYPE_CHECKING:
    from jaxcomp.base import Averaged, Mixed

__all__ = [
    "Accumulate",
    "Average",
    "Axis",
    "Compress",
    "Contraction",
    "Decompress",
    "IdealBits",
    "Init",
    "LeafChoices",
    "LeafContractions",
    "Mix",
    "Support",
]

Array: TypeAlias = jax.Array
Tree: TypeAlias = Any  # a pytree of arrays
Payload: TypeAlias = Any  # a pytree of arrays whose shapes do not depend on the data
State: TypeAlias = Any  # a pytree; () when there is nothing to remember
Spec: TypeAlias = Any  # ShapeDtypeStruct, or a pytree of them
Axis: TypeAlias = Hashable  # a mapped axis: its name, names, or a `collectives.Part`


class Init(Protocol):
    """The state before the first step; called on the host, outside any mapped axis.

    It depends on the shapes and dtypes of what it is given, and on the values only
    where a model's own parameters are given.
    """

    def __call__(self, like: Any, /) -> State: ...


class Compress(Protocol):
    """From an array and the state to a payload and the next state.

    The key is the only source of randomness: the same arguments give the same bits. The
    payload's shapes follow from the array's shape and dtype alone.
    """

    def __call__(
        self, x: Any, state: State, key: Array, /
    ) -> tuple[Payload, State]: ...


class Decompress(Protocol):
    """From a payload back to an array, with the shape and dtype of the spec.

    `decompress_sum` has this type too. It takes payloads with a leading axis and
    returns the sum of their arrays in at least float32. It adds them in the order of
    that axis, and does not hold all of them at once.
    """

    def __call__(self, payload: Payload, spec: Spec, /) -> Any: ...


class Accumulate(Protocol):
    """`total` plus the array of the payload, at the cost of what the payload holds."""

    def __call__(self, total: Any, payload: Payload, /) -> Any: ...


class IdealBits(Protocol):
    """The information in a payload, in bits: what a perfect coder would send."""

    def __call__(self, spec: Spec, /) -> float: ...


class Contraction(Protocol):
    """The delta with E|x - C(x)|^2 <= (1 - delta) |x|^2 for every x of this shape.

    It is 1 where nothing is lost, 0 where the error is never larger than x, and None
    where it may be larger.
    """

    def __call__(self, spec: Spec, /) -> float | None: ...


class Support(Protocol):
    """How many elements of C(x) may differ from zero; few for a sparsifier."""

    def __call__(self, spec: Spec, /) -> int: ...


class Average(Protocol):
    """One step of an exchange, called under the mapped axis.

    The law: the mean over workers of `sent` equals `mean`. Memories lose nothing if and
    only if it holds.
    """

    def __call__(self, tree: Tree, state: State, key: Array, /) -> "Averaged": ...


class LeafContractions(Protocol):
    """For each leaf of a tree, the contraction of what an exchange loses of it."""

    def __call__(self, spec: Spec, /) -> list[float | None]: ...


class LeafChoices(Protocol):
    """For each leaf, whether some of its elements are sent and others are not."""

    def __call__(self, spec: Spec, /) -> list[bool]: ...


class Mix(Protocol):
    """One step of a mixer, called under the mapped axis.

    `updates` are what the worker's own optimiser wants to add to `params`. The phase is
    a Python number, the same on all workers.
    """

    def __call__(
        self, params: Tree, updates: Tree, state: State, key: Array, phase: int, /
    ) -> "Mixed": ...
