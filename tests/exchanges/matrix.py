"""Every exchange with every compressor that it takes, on simulated workers.

The exchange is compiled by itself, once for a number of workers; memories run around it
uncompiled. So the whole matrix costs as many programs as exchanges, not as pairs.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import exchanges, memory, parallel
from jaxcomp.core.types import Averaged, Exchange
from tests.workers import one_of

COMPRESSORS = ("top_k(keep=0.1)", "random_k(keep=0.1)", "qsgd(levels=7)", "sign")
WORKERS = (1, 2, 3, 4, 8)
# Exchange, and the compressors it is tried with; None: it uses none.
PAIRS = [
    *[("exact", None), ("power_sgd(rank=1, min_rate=1)", None)],
    *[("majority_vote", None), ("shared_scale", None)],
    # Two options: the usual four take four times as long to compile.
    ("budget(bits_per_step=6000, every=2, ladder=[sign, block_scaled(4)])", "sign"),
    ("aligned_psum", "random_k(keep=0.1)"),
    *[("gather", c) for c in COMPRESSORS],
    *[("hierarchical(per_host=HOST)", c) for c in COMPRESSORS],
    *[("simulated", c) for c in COMPRESSORS],
    *[("sparse_reduce", c) for c in COMPRESSORS[:2]],
    *[("two_phase", c) for c in COMPRESSORS],
    ("two_phase(server_feedback=True)", "qsgd(levels=15)"),
]
FIRST = dict(reversed(PAIRS))  # exchange -> the first compressor it is tried with
# What is kept may grow under some of these exchanges, but nothing of it gets lost.
MEMORIES = (
    "none",
    "error_feedback(allow=True)",
    "dgc(allow=True)",
    "dgc(nesterov=True, masking=False, allow=True)",
    "ef21(allow=True)",
    "ef21_momentum(allow=True)",
    "local_momentum",
    "shared_momentum",
    "local_momentum | error_feedback(allow=True)",
)


class Step(NamedTuple):
    """One step of all workers, as NumPy; all but `mean` have a worker axis."""

    given: Any
    mean: Any
    sent: Any
    held: Any  # None where nothing is ever held
    state: Any
    info: Any


def few_workers(exchange: str) -> int:
    """A number that shows what may go wrong with any: two hosts of two, or three."""
    return 4 if "HOST" in exchange else 3


def name_of(spec: str) -> str:
    """The name in front of the arguments."""
    return re.split(r"\W", spec)[0]


def gradients(workers: int, seed: int) -> dict[str, jax.Array]:
    """A matrix and a vector, heavy-tailed."""
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (10, 9), "bias": (7,)}
    return {
        name: jnp.asarray(rng.standard_t(3, size=(workers, *shape)), jnp.float32)
        for name, shape in shapes.items()
    }


@functools.cache
def compiled(exchange: str, compressor: str | None, workers: int) -> Exchange:
    """An exchange whose `average` is one program."""
    spec = exchange.replace("HOST", "1" if workers % 2 else "2")
    return as_program(exchanges.make(spec, compressor or "none"))


def as_program(exchange: Exchange) -> Exchange:
    """The exchange with an `average` that is compiled as a whole."""
    return exchange._replace(average=jax.jit(exchange.average))


def with_memory(exchange: Exchange, spec: str) -> Exchange:
    return memory.make(spec, exchange)


def mapped(exchange: Exchange, workers: int, axes: Any) -> Callable[..., Averaged]:
    """(state, tree, key) -> what the exchange makes of it, on simulated workers.

    That the mean is the same on all workers is known while tracing: it comes out of
    the map without a worker axis.
    """
    out_axes: Any = (None, 0, axes, 0, 0, 0, 0)
    return jax.vmap(
        lambda s, x, k: exchange.average(x, s, k),
        in_axes=(axes, 0, None),
        out_axes=Averaged(*out_axes),
        axis_name="workers",
        axis_size=workers,
    )


def steps_of(
    exchange: Exchange, workers: int, count: int, inputs: Callable[[int], Any]
) -> list[Step]:
    """Take `count` steps; `inputs(i)` has a leading worker axis."""
    crew = parallel.setup(workers, "vmap")
    state = parallel.spread(exchange.init(one_of(inputs(0))), crew)
    axes = parallel.axes(state)
    average_of = mapped(exchange, workers, axes)
    held_of = exchange.held and jax.vmap(exchange.held, in_axes=(axes,))
    steps = []
    for i in range(count):
        given = inputs(i)
        mean, sent, state, info, *_ = average_of(state, given, jax.random.key(i))
        held = held_of(state) if held_of else None
        step = (given, mean, sent, held, state, info)
        steps.append(Step(*jax.tree.map(np.asarray, step)))
    return steps


def close(a: Any, b: Any, tolerance: float = 2e-5) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        a,
        b,
    )


def zeros(tree: Any) -> Any:
    return jax.tree.map(np.zeros_like, tree)


def add(a: Any, b: Any) -> Any:
    return jax.tree.map(np.add, a, b)


def subtract(a: Any, b: Any) -> Any:
    return jax.tree.map(np.subtract, a, b)


def average(tree: Any) -> Any:
    """The mean over the leading worker axis."""
    return jax.tree.map(lambda x: x.mean(axis=0), tree)
