"""How long an exchange computes on this machine, and what it sends."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomp.base import Exchange, Spec
from jaxcomp.errors import UserError
from jaxcomp.prediction.alone import alone
from jaxcomp.wire import Collective, traced_collectives

__all__ = ["Local", "collectives_of", "local_seconds", "start_of", "step_of"]

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
    run = alone(step_of(exchange), like, spec, axis=axis, workers=workers)

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
