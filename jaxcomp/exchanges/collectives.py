"""The collectives of exchanges: over a mapped axis, or over parts of one.

An axis is a name. `Part` stands for the workers of one host, or for those with the same
place in every host; whatever an exchange does over an axis it does over a part as well.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Axis, Tree

__all__ = ["Part", "gather", "index", "mean", "mean_of_all", "size", "swap", "total"]


class Part(NamedTuple):
    """Groups of workers, each of which does what an axis does."""

    axis: str
    per_host: int  # neighbouring workers that share a host
    inside: bool  # the workers of a host; else those with one place in all hosts

    def groups(self) -> list[list[int]]:
        """The workers of each group.

        Example:
            >>> step = lambda x: np.array(Part("a", 2, inside=False).groups())
            >>> jax.vmap(step, axis_name="a", out_axes=None)(jnp.zeros(6)).tolist()
            [[0, 2, 4], [1, 3, 5]]
        """
        workers = jax.lax.axis_size(self.axis)
        if workers % self.per_host:
            message = (
                f"{workers} workers are not a multiple of per_host={self.per_host}"
            )
            raise ValueError(message)
        table = np.arange(workers).reshape(-1, self.per_host)
        return (table if self.inside else table.T).tolist()


def size(axis: Axis) -> int:
    """Number of workers that take part; known while tracing."""
    if isinstance(axis, Part):
        return len(axis.groups()[0])
    return jax.lax.axis_size(axis)


def index(axis: Axis) -> Array:
    """This worker's place among those that take part."""
    if not isinstance(axis, Part):
        return jax.lax.axis_index(axis)
    place = jax.lax.axis_index(axis.axis)
    return place % axis.per_host if axis.inside else place // axis.per_host


def total(tree: Tree, axis: Axis) -> Tree:
    """The sum over the workers, by one all-reduce."""

    def summed(rows: Array) -> Array:
        return jnp.sum(rows, axis=0, dtype=rows.dtype)

    return _over(jax.lax.psum, summed)(tree, axis)


def mean(tree: Tree, axis: Axis) -> Tree:
    """The mean over the workers, by one all-reduce."""
    return jax.tree.map(lambda x: x / size(axis), total(tree, axis))


def gather(x: Array, axis: Axis, alike: bool = False) -> Array:
    """Every worker's x, stacked in the order of the workers.

    Args:
      x: of this worker.
      axis: over whom.
      alike: promises that all groups of a part gather the same.
    """
    return _over(jax.lax.all_gather, lambda rows: rows, alike)(x, axis)


def swap(rows: Array, axis: Axis) -> Array:
    """Row j of worker i becomes row i of worker j, by one all-to-all."""

    def exchanged(x: Array, name: str, **groups: Any) -> Array:
        return jax.lax.all_to_all(x, name, 0, 0, **groups)

    def own(all_rows: Array) -> Array:
        return jnp.take(all_rows, index(axis), axis=1)

    return _over(exchanged, own)(rows, axis)


def mean_of_all(arrays: list[Array], axis: Axis) -> list[Array]:
    """The mean of each array, by one all-reduce in the widest of their types."""
    if not arrays:
        return []
    dtype = functools.reduce(np.promote_types, [a.dtype for a in arrays])
    flat = jnp.concatenate([a.reshape(-1).astype(dtype) for a in arrays])
    borders = np.cumsum([a.size for a in arrays])[:-1]
    parts = jnp.split(mean(flat, axis), borders)
    pairs = zip(parts, arrays, strict=True)
    return [part.reshape(a.shape).astype(a.dtype) for part, a in pairs]


def _over(
    collective: Callable[..., Tree],
    simulated: Callable[[Array], Array],
    alike: bool = False,
) -> Callable[[Tree, Axis], Tree]:
    """A collective over an axis or over a part of one.

    vmap knows no parts. There, where nothing moves anyway, all workers' arrays are
    gathered, and `simulated` takes the rows of the own group for the result.
    """

    def over(x: Tree, axis: Axis) -> Tree:
        if not isinstance(axis, Part):
            return collective(x, axis)
        groups = axis.groups()
        try:
            return collective(x, axis.axis, axis_index_groups=groups)
        except NotImplementedError:
            everyone = jax.lax.all_gather(x, axis.axis)
            place = jax.lax.axis_index(axis.axis)
            member = place // axis.per_host if axis.inside else place % axis.per_host
            own = jnp.asarray(groups)[0 if alike else member]
            return jax.tree.map(lambda rows: simulated(rows[own]), everyone)

    return over
