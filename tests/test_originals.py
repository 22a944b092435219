"""What docs/coming-from.md and docs/peers.md equate has the numbers of the original.

Each original's rule is stated again in NumPy, from its formula, and compared with what
the page tells people to write: a test reads the spec from the row of the page.
"""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcomp
from jaxcomp.base import Exchange

DOCS = Path(__file__).resolve().parent.parent / "docs"
WORKERS = 2


def row(page: str, there: str) -> str:
    """The rest of the row that begins with what stood in the original."""
    [found] = re.findall(rf"^\| {re.escape(there)} \|(.*)$", page, re.MULTILINE)
    return found


def steps(exchange: Exchange, gradients: np.ndarray) -> np.ndarray:
    """The mean of each step; gradients are [steps, workers, ...]."""

    def of_worker(mine: jax.Array) -> jax.Array:
        def step(state: Any, given: Any) -> Any:
            out = exchange.average(given[0], state, given[1])
            return out.state, out.mean

        keys = jax.random.split(jax.random.key(0), len(mine))
        return jax.lax.scan(step, exchange.init(mine[0]), (mine, keys))[1]

    mapped = jax.vmap(of_worker, in_axes=1, out_axes=None, axis_name="workers")
    return np.asarray(jax.jit(mapped)(jnp.asarray(gradients, jnp.float32)))


def heavy(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(4, size=shape)


# ------------------------------------------------------------------------- DeepSpeed


def by_root_mean_square(x: np.ndarray, scale: float | None = None) -> np.ndarray:
    scale = np.sqrt(np.mean(x**2)) if scale is None else scale
    return scale * np.where(x < 0, -1.0, 1.0)


def deepspeed(gradients: np.ndarray, one_scale: bool) -> np.ndarray:
    """Its compressed all-reduce: errors of workers and of servers, a chunk for each."""
    workers = gradients.shape[1]
    worker_errors = np.zeros(gradients.shape[1:])
    server_errors = np.zeros((workers, gradients.shape[2] // workers))
    means = []
    for given in gradients:
        given = given + worker_errors
        chunks = given.reshape(workers, workers, -1)
        scales = np.sqrt(np.mean(given**2, axis=1)) if one_scale else [None] * workers
        sent = np.array(
            [
                [by_root_mean_square(x, scale) for x in mine]
                for mine, scale in zip(chunks, scales, strict=True)
            ]
        )
        worker_errors = given - sent.reshape(workers, -1)
        summed = sent.mean(axis=0) + server_errors
        answer = np.array([by_root_mean_square(x) for x in summed])
        server_errors = summed - answer
        means.append(answer.reshape(-1))
    return np.array(means)


def test_two_phase_is_the_all_reduce_of_deepspeed():
    words = re.findall(
        r"`(\w+=\"[^`]+\")`",
        row((DOCS / "peers.md").read_text(), "worker and server errors"),
    )
    made = f"jaxcomp.make_exchange(scope='whole_tree', {', '.join(words)})"
    exchange = eval(made, {"jaxcomp": jaxcomp})
    gradients = heavy(12, WORKERS, 20)
    # A worker's parts of its first gradient are as long: one scale is that of each.
    first = gradients[0].reshape(WORKERS, WORKERS, -1)
    first /= np.linalg.norm(first, axis=2, keepdims=True)
    first[1] *= 3
    found = steps(exchange, gradients)
    np.testing.assert_allclose(found, deepspeed(gradients, one_scale=False), rtol=1e-4)
    original = deepspeed(gradients, one_scale=True)
    np.testing.assert_allclose(found[0], original[0], rtol=1e-5)
    assert not np.allclose(found, original)  # what the page says of the scales
