"""What the type of a state says of another number of workers.

`jaxcomp.resizing` says what is done to states; here are the words for what differs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jaxcomp.contracts import Tree

__all__ = ["Resize", "averaged_on_resize", "is_averaged_on_resize"]


class Resize(NamedTuple):
    """How states of one type go on with another number of workers.

    Marked floats are averaged or copied, so that their mean over the workers stays.
    Whatever else is marked has to be equal on all workers. Fields for which this is
    wrong are built anew instead.
    """

    of: type  # of the states
    # The fields that are built anew; `rebuild` is given what they were before.
    rebuilt: tuple[str, ...] = ()
    # (state, params, workers) -> state. Marked arrays have an axis of the new workers
    # in front; params have it too, where each worker has a model of its own. They are
    # those of the whole model, also where the state is of a part of it.
    rebuild: Callable[[Any, Tree, int], Any] | None = None
    # Fields of which new worker i takes those of old worker i modulo their number: of
    # whoever has the same part of what a host has, if as many as before share a host.
    handed_on: tuple[str, ...] = ()


Kind = TypeVar("Kind", bound=type)
_AVERAGED: set[type] = set()


def averaged_on_resize(kind: Kind) -> Kind:
    """Declare that marked floats of this type count in the mean over the workers.

    It decorates the state of an exchange or memory. If a run goes on with another
    number of workers, their values are then averaged or copied. Without the decorator
    such a state is refused, unless it is equal on all workers.
    """
    _AVERAGED.add(kind)
    return kind


def is_averaged_on_resize(kind: type) -> bool:
    """Whether `averaged_on_resize` was applied to a type."""
    return kind in _AVERAGED
