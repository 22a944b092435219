"""From a tree, methods and a link to what each method takes, and where it pays off."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jaxcomp import shapes
from jaxcomp.base import Exchange, Spec
from jaxcomp.cost import Cost, Link, bandwidth_for, break_even, cost
from jaxcomp.errors import UserError
from jaxcomp.prediction.measuring import Local, collectives_of, local_seconds
from jaxcomp.prediction.methods import USUAL, make_method
from jaxcomp.runs.units import times_fewer
from jaxcomp.specs import Count, check
from jaxcomp.trees import spec_of
from jaxcomp.wire import Collective, dense_bytes

__all__ = ["SHARES", "Prediction", "Row", "predict", "spec_of_tree"]

SHARES = (0.5, 0.75, 0.9)  # of a step in which it computes
_EXACT = "exact"


class Row(NamedTuple):
    """What a method takes; seconds, bytes, and bytes a second."""

    method: str
    collectives: tuple[Collective, ...]
    exchange: Cost
    step: float  # computing and the exchange, one after the other
    speedup: float  # of the step, over `exact`
    break_even: float  # the bandwidth from which on `exact` is as fast; inf: none
    needed: tuple[float, ...]  # the bandwidth for each share of `SHARES`


class Prediction(NamedTuple):
    """Methods on a link, the fastest step first."""

    rows: tuple[Row, ...]
    tensors: int
    elements: int
    dense: int  # bytes of the gradient
    link: Link
    workers: int
    per_host: int
    compute: float  # seconds of forward and backward pass

    @property
    def exact(self) -> Row:
        return next(row for row in self.rows if row.method == _EXACT)

    def fewer(self, row: Row) -> float:
        """How many times fewer bytes leave a host than with `exact`."""
        return times_fewer(self.exact.exchange.nbytes, row.exchange.nbytes)

    @property
    def helps(self) -> bool:
        """Whether some method makes the step faster than `exact`."""
        return self.rows[0].speedup > 1


def predict(
    tree: Any,
    methods: Sequence[str | Exchange] = USUAL,
    *,
    link: Link,
    workers: int = 8,
    compute: float,
    per_host: int = 1,
    inside: Link | None = None,
    sharing: int = 1,
    local: Local | None = None,
) -> Prediction:
    """Predict the step of data-parallel training with each of some methods.

    What a worker computes is measured here and now; what messages take follows from the
    program by `jaxcomp.cost`. Nothing overlaps. Call `jaxcomp.parallel.keep_pages()`
    before anything else, as the trainer does.

    Args:
      tree: the gradient: arrays, specs or shapes, or a name in `jaxcomp.shapes.TREES`.
      methods: one line each, as `prediction.methods` reads it, or exchanges. `exact` is
        always among them.
      link: between hosts.
      workers: their number.
      compute: seconds of forward and backward pass of one worker.
      per_host: workers of one host, who share its link.
      inside: between the workers of one host; by default without cost.
      sharing: workers that share the machine on which this runs; by default all of it
        belongs to one.
      local: how long exchanges compute, where it is not measured here.

    Raises:
      UserError: a method, a tree or a number is wrong.

    Example:
      >>> link = Link(bandwidth=1e6)
      >>> found = predict([(64, 64)], ["sign"], link=link, workers=4, compute=0.01)
      >>> [row.method for row in found.rows]
      ['sign', 'exact']
    """
    check(Count, "workers", workers)
    check(Count, "per_host", per_host)
    check(Count, "sharing", sharing)
    if workers % per_host or workers == 1:
        message = "are 2 at least, and a multiple of those of one host"
        raise UserError(f"workers {message}, not {workers} with per_host={per_host}")
    if not 0 < compute < math.inf:
        raise UserError(f"compute is a positive number of seconds, not {compute}")
    spec = spec_of_tree(tree)
    named = {m if isinstance(m, str) else m.name: m for m in (_EXACT, *methods)}
    made = [make_method(m, spec) if isinstance(m, str) else m for m in named.values()]
    times = (local or local_seconds(workers, sharing))(made, spec)
    found = [tuple(collectives_of(exchange, spec, workers)) for exchange in made]
    costs = [
        cost(each, link, local=seconds, per_host=per_host, inside=inside)
        for each, seconds in zip(found, times, strict=True)
    ]
    rows = [
        Row(
            method=name,
            collectives=each,
            exchange=taken,
            step=compute + taken.seconds,
            speedup=(compute + costs[0].seconds) / (compute + taken.seconds),
            break_even=break_even(taken, costs[0], link.bandwidth),
            needed=tuple(
                bandwidth_for(
                    *(share, compute, each, link),
                    local=taken.local,
                    per_host=per_host,
                )
                for share in SHARES
            ),
        )
        for name, each, taken in zip(named, found, costs, strict=True)
    ]
    leaves = jax.tree.leaves(spec)
    return Prediction(
        rows=tuple(sorted(rows, key=lambda row: row.step)),
        tensors=len(leaves),
        elements=sum(math.prod(leaf.shape) for leaf in leaves),
        dense=dense_bytes(spec),
        link=link,
        workers=workers,
        per_host=per_host,
        compute=compute,
    )


def spec_of_tree(tree: Any) -> Spec:
    """The spec of a tree, of its shapes, or of a model by its name."""
    if isinstance(tree, str):
        if tree not in shapes.TREES:
            valid = ", ".join(shapes.TREES)
            raise UserError(f"unknown tree {tree!r}. Valid: {valid}")
        tree = shapes.tree(tree)

    def is_shape(node: Any) -> bool:
        return isinstance(node, tuple | list) and all(type(n) is int for n in node)

    def as_spec(leaf: Any) -> Any:
        if is_shape(leaf):
            return jax.ShapeDtypeStruct(tuple(leaf), jax.numpy.float32)
        if not hasattr(leaf, "shape"):
            raise UserError(f"a tree has arrays, specs or shapes, not {leaf!r}")
        return leaf

    spec = spec_of(jax.tree.map(as_spec, tree, is_leaf=is_shape))
    if not jax.tree.leaves(spec):
        raise UserError("the tree has no leaves, so that there is nothing to exchange")
    return spec
