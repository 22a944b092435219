"""The key batch_norm of a config: over which examples batch normalisation looks."""

from collections.abc import Callable
from typing import Any

from jaxcomp.models import Statistics
from jaxcomp.specs import Count, build, publish

__all__ = ["REGISTRY", "make"]


def local(axis: Any, ghost: Count | None = None) -> Statistics:
    """Each worker's batch by itself, or groups of `ghost` of its examples."""
    return Statistics(None, ghost or 0)


def sync(axis: Any, ghost: Count | None = None) -> Statistics:
    """The batches of all workers together, or their groups of one number."""
    return Statistics(axis, ghost or 0)


REGISTRY: dict[str, Callable[..., Statistics]] = {"local": local, "sync": sync}
publish(batch_norm=REGISTRY)


def make(spec: str, axis: Any) -> Statistics:
    """The statistics that a config names.

    Args:
      spec: such as "local" or "sync(ghost=32)".
      axis: the mapped axis of the workers.

    Example:
      >>> make("sync(ghost=32)", "workers")
      Statistics(axis='workers', group=32)
    """
    return build(spec, REGISTRY, "batch_norm", axis)
