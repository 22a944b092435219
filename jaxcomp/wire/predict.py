"""What methods would take on links that are not here: measured alone, and modelled."""

import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomp import compressors, exchanges, memory, scope
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, SpecError, calls, check, suggest
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import Exchange, Spec
from jaxcomp.core.units import times_fewer
from jaxcomp.transforms.make import make_exchange
from jaxcomp.wire.bytes import Collective, dense_bytes
from jaxcomp.wire.cost import Cost, Link, break_even, cost
from jaxcomp.wire.shapes import named_tree
from jaxcomp.wire.traced import traced_collectives, without_collectives

_COPIES = "copies"
_WARM_UP, _TIMED = 10, 9  # steps; the first ten of some sparsifiers are slower
_LONGEST = 1.0  # seconds for each of the two; at least two steps are timed

# From exchanges and a spec to the seconds that each of them computes.
Local = Callable[[Sequence[Exchange], Spec], list[float]]


class _Ready(NamedTuple):
    """A compiled exchange, and what it starts with."""

    compiled: Any
    state: Any


def step_of(exchange: Exchange) -> Callable[[Any, Any], Any]:
    """One exchange as a function of one worker: (state, tree) -> (mean, state)."""

    def step(state: Any, tree: Any) -> Any:
        count, inner = state
        key = jax.random.fold_in(jax.random.key(0), count)
        done = exchange.average(tree, inner, key)
        return done.mean, (count + 1, done.state)

    return step


def start_of(exchange: Exchange, spec: Spec) -> Any:
    """The state of `step_of`, as specs."""
    return jax.eval_shape(lambda: (jnp.int32(0), exchange.init(spec)))


def collectives_of(exchange: Exchange, spec: Spec, workers: int) -> list[Collective]:
    """What one worker hands to its collectives in one exchange."""
    state, axis = start_of(exchange, spec), str(exchange.axis)
    step = step_of(exchange)
    found = traced_collectives(step, state, spec, axis=axis, workers=workers)
    is_dense = all(delta == 1 for delta in exchange.contraction(spec))
    return _joined(found) if is_dense else found


def _joined(found: list[Collective]) -> list[Collective]:
    """All-reduces of the tensors of a tree as the one that XLA makes of them."""
    groups = {(c.kind, c.workers, c.times, c.groups): 0 for c in found}
    for c in found:
        groups[c.kind, c.workers, c.times, c.groups] += c.nbytes
    return [
        Collective(kind, nbytes, size, times, members)
        for (kind, size, times, members), nbytes in groups.items()
    ]


def local_seconds(workers: int, sharing: int = 1) -> Local:
    """Make a function that times what exchanges compute, without any message.

    Args:
      workers: between whom a worker exchanges: it decodes what all of them would send.
      sharing: how many workers share this machine. They compute at the same time, each
        on a virtual device, and a worker takes as long as all of them.

    Raises:
      UserError: there are fewer devices than workers that share the machine.
    """
    devices = jax.devices()
    if sharing > len(devices):
        raise UserError(
            f"{sharing} workers that share this machine need as many devices, not "
            f"{len(devices)}: call jaxcomp.parallel.setup(workers={sharing}) first"
        )
    mesh = Mesh(np.array(devices[:sharing]), (_COPIES,))

    def seconds(every: Sequence[Exchange], spec: Spec) -> list[float]:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # most time is compiling
            made = [pool.submit(_ready, each, spec, workers, mesh) for each in every]
            ready = [future.result() for future in made]
        tree = _drawn(spec, mesh)
        return [_timed(each, tree) for each in ready]

    return seconds


def _ready(exchange: Exchange, spec: Spec, workers: int, mesh: Mesh) -> _Ready:
    """Compile an exchange, once for each device of a mesh."""
    like, axis = start_of(exchange, spec), str(exchange.axis)
    run = without_collectives(step_of(exchange), like, spec, axis=axis, workers=workers)

    def of_one(state: Any, tree: Any) -> Any:
        own = jax.tree.map(lambda x: x[0], (state, tree))
        return jax.tree.map(lambda x: x[None], run(*own))

    each = PartitionSpec(_COPIES)
    mapped = jax.shard_map(
        of_one, mesh=mesh, in_specs=each, out_specs=each, check_vma=False
    )
    sharding = NamedSharding(mesh, each)

    def stacked(x: Any) -> Any:
        shape = (mesh.size, *x.shape)
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

    specs = jax.tree.map(stacked, (like, spec))
    compiled = jax.jit(mapped, donate_argnums=0).lower(*specs).compile()
    state = jnp.int32(0), exchange.init(spec)
    stack = [jax.tree.map(np.asarray, state)] * mesh.size
    whole = jax.tree.map(lambda *xs: np.stack(xs), *stack)
    return _Ready(compiled, jax.device_put(whole, sharding))


def _drawn(spec: Spec, mesh: Mesh) -> Any:
    """Random gradients, another one on each device."""
    generator = np.random.default_rng(0)
    sharding = NamedSharding(mesh, PartitionSpec(_COPIES))

    def draw(x: Any) -> jax.Array:
        values = generator.standard_normal((mesh.size, *x.shape), np.float32)
        return jax.device_put(values.astype(x.dtype), sharding)

    return jax.tree.map(draw, spec)


def _timed(ready: _Ready, tree: Any) -> float:
    """The median seconds of a step, after some that warm up."""
    state = ready.state

    def steps(most: int, least: int) -> list[float]:
        nonlocal state
        taken: list[float] = []
        while len(taken) < least or (len(taken) < most and sum(taken) < _LONGEST):
            began = time.perf_counter()
            mean, state = ready.compiled(state, tree)
            jax.block_until_ready((mean, state))
            taken.append(time.perf_counter() - began)
        return taken

    steps(_WARM_UP, 1)
    return statistics.median(steps(_TIMED, 2))


# What people try first, and one method of each kind.
USUAL = (
    "exact",
    "two_phase: cast(bfloat16)",
    "two_phase: qsgd(levels=7, norm='max')",
    "two_phase: sign",
    "top_k(keep=0.01)",
    "power_sgd(rank=2)",
)
_EXACT = "exact"


class Row(NamedTuple):
    """What a method takes; seconds, bytes, and bytes a second."""

    method: str
    collectives: tuple[Collective, ...]
    exchange: Cost
    step: float  # computing and the exchange, one after the other
    speedup: float  # of the step, over `exact`
    break_even: float  # the bandwidth from which on `exact` is as fast; inf: none


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
    program by `jaxcomp.wire.cost`. Nothing overlaps. Call
    `jaxcomp.parallel.keep_pages()` before anything else, as the trainer does.

    Args:
      tree: the gradient: arrays, specs or shapes, or a name in `TREES`.
      methods: one line each, as `make_method` reads it, or exchanges. `exact` is
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
    _check(workers, per_host, sharing, compute)
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


def _check(workers: int, per_host: int, sharing: int, compute: float) -> None:
    """Refuse numbers that cannot be."""
    check(Count, "workers", workers)
    check(Count, "per_host", per_host)
    check(Count, "sharing", sharing)
    if workers % per_host or workers == 1:
        message = "are 2 at least, and a multiple of those of one host"
        raise UserError(f"workers {message}, not {workers} with per_host={per_host}")
    if not 0 < compute < math.inf:
        raise UserError(f"compute is a positive number of seconds, not {compute}")


def spec_of_tree(tree: Any) -> Spec:
    """The spec of a tree, of its shapes, or of a model by its name."""
    if isinstance(tree, str):
        tree = named_tree(tree)

    def is_shape(node: Any) -> bool:
        is_list = isinstance(node, tuple | list)
        return is_list and all(type(n) is int and n >= 0 for n in node)

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


# Matrices of low rank are those of single tensors; the others compile quickest, and
# take the same time, with all tensors in one vector.
_OF_TENSORS = ("atomo", "power_sgd", "qsvd", "svd")
_FRONT: Mapping[str, Mapping[str, object]] = {
    "memory": memory.REGISTRY,
    "exchange": exchanges.REGISTRY,
    "scope": scope.REGISTRY,
}


def make_method(text: str, spec: Spec, axis: str = "workers") -> Exchange:
    """Build a method from one line.

    Args:
      text: a compressor, or an exchange with a way of its own; before it, each with a
        colon, what else is chosen of memory, exchange and scope. Without an exchange it
        is `gather`. Without a memory it is error feedback, if something is lost and a
        memory may keep it.
      spec: of the tree, on which that depends.
      axis: of the workers.

    Raises:
      SpecError: a name or an argument is unknown, or the parts do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> make_method("two_phase: sign", {"w": jnp.ones((8, 8))}).name
      'error_feedback: two_phase(whole_tree: sign)'
      >>> make_method("exact", {"w": jnp.ones((8, 8))}).name
      'exact'
    """
    *front, last = _cut(text)
    chosen: dict[str, Any] = {}
    for part in front:
        kind = _kind_of(part, text)
        if kind in chosen:
            raise SpecError(f"{text!r} names two of a kind: {chosen[kind]} and {part}")
        chosen[kind] = part
    names = [call.name for call in calls(last)]
    own = names[0] in exchanges.REGISTRY and "exchange" not in chosen
    if not own and names[0] not in compressors.REGISTRY:
        hint = suggest(names[0], [*compressors.REGISTRY, *exchanges.REGISTRY])
        raise SpecError(f"{text!r}: no method is called {names[0]!r}. {hint}")
    chosen = {"exchange": last, **chosen} if own else {"compressor": last, **chosen}
    chosen.setdefault(
        "scope", "per_leaf" if {*names} & {*_OF_TENSORS} else "whole_tree"
    )
    plain = make_exchange(**{**chosen, "memory": "none"}, axis=axis)
    if "memory" not in chosen:
        deltas = plain.contraction(spec)
        if None in deltas or all(delta == 1 for delta in deltas):
            return plain
    return make_exchange(**{"memory": "error_feedback", **chosen}, axis=axis)


def _cut(text: str) -> list[str]:
    """The parts of a line between colons; one in brackets or quotes does not count.

    Example:
      >>> _cut("dgc: gather: top_k(keep=0.1)")
      ['dgc', 'gather', 'top_k(keep=0.1)']
    """
    parts = re.split(r":(?![^()]*\))(?=(?:[^'\"]|'[^']*'|\"[^\"]*\")*$)", text)
    return [part.strip() for part in parts]


def _kind_of(part: str, text: str) -> str:
    name = calls(part)[0].name
    kinds = [kind for kind, registry in _FRONT.items() if name in registry]
    if not kinds:
        hint = suggest(name, [n for registry in _FRONT.values() for n in registry])
        message = (
            f"a memory, an exchange or a scope stands before a colon, not {name!r}"
        )
        raise SpecError(f"{text!r}: {message}. {hint}")
    return kinds[0]
