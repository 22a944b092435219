"""What docs/coming-from.md and docs/peers.md equate has the numbers of the original.

Each original's rule is stated again in NumPy, from its formula, and compared with what
the page tells people to write: a test reads the spec from the row of the page.
"""

import functools
import itertools
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomp
from jaxcomp import make_compressor, make_exchange
from jaxcomp.cli.config import load_config
from jaxcomp.core.specs import build
from jaxcomp.core.types import Exchange
from jaxcomp.mixers import gossip
from jaxcomp.training import stages
from jaxcomp.training.optimizers import decaying
from jaxcomp.training.schedules import Horizon, learning_rate
from tests import laws
from tests.test_coming_from import LINES

DOCS = Path(__file__).resolve().parent.parent / "docs"
WORKERS = 2


def row(page: str, there: str) -> str:
    """The rest of the row that begins with what stood in the original."""
    [found] = re.findall(rf"^\| {re.escape(there)} \|(.*)$", page, re.MULTILINE)
    return found


def told(there: str, key: str = "compressor", base: str = "") -> str:
    """The value of a key of the config in the row of what stood there."""
    [line] = [x for x in LINES if there in x.there and base in x.base]
    words = re.split(r" (?=--)", line.spans[0])
    return dict(w.removeprefix("--config.").split("=", 1) for w in words)[key]


@functools.cache
def made(method: str) -> Any:
    return make_compressor(method)


def outputs(method: str, x: np.ndarray, count: int) -> np.ndarray:
    """C(x) for so many keys, flat."""
    keys = jax.random.split(jax.random.key(0), count)
    return np.asarray(laws.outputs(made(method), jnp.float32(x), keys), np.float64)


def decoded(method: str, x: np.ndarray) -> np.ndarray:
    return outputs(method, x, 1).reshape(x.shape)


def check_levels(method: str, x: np.ndarray, unit: Any, factor: float = 1) -> None:
    """Elements are rounded at random to multiples of a unit, without bias."""
    drawn = outputs(method, x, 300) / factor
    levels = drawn / unit
    np.testing.assert_allclose(levels, np.round(levels), atol=2e-2)
    assert np.abs(drawn - x).max() <= unit * (1 + 1e-4)
    part = np.abs(x) / unit % 1
    allowed = 6 * unit * np.sqrt(part * (1 - part) / 300 + 1 / 300**2)
    assert (np.abs(drawn.mean(axis=0) - x) <= allowed).all()


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


# ------------------------------------------------------- Layer-wise or entire-model


def test_operators_of_the_layer_wise_study():
    """Each acts on one tensor, and what it does is seen from outside."""
    x, big = heavy(300), 0.3
    size = np.abs(x)
    top = np.count_nonzero(decoded(told("--method Topk"), x))
    # The k-th smallest for k = ceil(n (1 - K)) passes its own threshold.
    least = np.sort(size)[math.ceil(x.size * (1 - big)) - 1]
    theirs = np.where(size >= least, x, 0)
    found = decoded(told("--method Topk"), x)
    assert np.count_nonzero(theirs) == top + 1
    np.testing.assert_allclose(found[found != 0], theirs[found != 0], rtol=1e-6)

    found = decoded(told("--method Randomk"), x)
    assert np.count_nonzero(found) == 150
    np.testing.assert_allclose(found[found != 0], x[found != 0], rtol=1e-6)

    # The gradient of the sum over a batch of 512, against V = 0.001.
    mean = x * 3e-6
    theirs = np.where(np.abs(512 * mean) >= 0.001, mean, 0)
    assert 0 < np.count_nonzero(theirs) < x.size
    found = decoded(told("--method Thresholdv"), mean)
    np.testing.assert_allclose(found, theirs, rtol=1e-6)
    dense = np.where(size < 1, 1.0, x) * 512  # all of it passes, and arrives
    np.testing.assert_allclose(decoded(told("--method Thresholdv"), dense), dense)

    theirs = np.where(2 * size >= size.max(), x, 0)
    found = decoded(told("--method AdaptiveThreshold"), x)
    np.testing.assert_allclose(found, theirs, rtol=1e-6)

    check_levels(told("--method TernGrad"), x, size.max())
    check_levels(told("--method RandomDithering"), x, np.linalg.norm(x) / 255)


# ----------------------------------------------------- Deep Gradient Compression


def dgc_rule(
    gradients: np.ndarray, keep: float, nesterov: bool = False, masking: bool = True
) -> np.ndarray:
    """Local momenta u and velocities v, the k largest, the mean of what is sent."""
    u, v = np.zeros(gradients.shape[1:]), np.zeros(gradients.shape[1:])
    means = []
    for g in gradients:
        u = 0.9 * (u + g) if nesterov else 0.9 * u + g
        v = v + u + g if nesterov else v + u
        least = np.sort(np.abs(v), axis=1)[:, -round(keep * v.shape[1])]
        sent = np.where(np.abs(v) >= least[:, None], v, 0)
        u, v = np.where((sent != 0) & masking, 0, u), v - sent
        means.append(sent.mean(axis=0))
    return np.array(means)


@pytest.mark.parametrize(
    ("there", "rule"),
    [
        ("configs/dgc/mm.py", {}),
        ("configs/dgc/nm.py", {"masking": False}),
        ("--use_residue_acc", {}),
        ("--use_nesterov", {"nesterov": True}),
    ],
)
def test_memories_of_dgc(there, rule):
    section = "virtual_workers" if "--use" in there else ""
    memory = told(there, "memory", section)
    exchange = make_exchange("gather", "top_k(keep=0.05)", memory)
    gradients = heavy(12, WORKERS, 60)
    expected = dgc_rule(gradients, 0.05, **rule)
    np.testing.assert_allclose(steps(exchange, gradients), expected, atol=1e-5)


def test_the_memory_of_dgc_in_choco():
    """Nesterov's d = g + m b with b = m b + g, no masking, each tensor clipped."""
    exchange = make_exchange(
        "gather", "top_k(keep=0.05)", told("--optimizer dgc", "memory")
    )
    gradients = heavy(12, WORKERS, 60)
    b = kept = np.zeros((WORKERS, 60))
    expected = []
    for g in gradients:
        norms = np.linalg.norm(g, axis=1, keepdims=True)
        g = g * np.minimum(1, 1 / math.sqrt(WORKERS) / norms)
        b = 0.9 * b + g
        kept = kept + g + 0.9 * b
        least = np.sort(np.abs(kept), axis=1)[:, -3]
        sent = np.where(np.abs(kept) >= least[:, None], kept, 0)
        kept = kept - sent
        expected.append(sent.mean(axis=0))
    np.testing.assert_allclose(steps(exchange, gradients), expected, atol=1e-5)


def test_warm_ups_of_dgc():
    def keeps(there: str) -> list[float]:
        return build(told(there, "keep_warmup"), stages.REGISTRY, "warm-up", 0.001)

    factor = 0.001 ** (1 / 6)
    np.testing.assert_allclose(
        keeps("configs/dgc/wm5.py"), [factor**e for e in range(1, 6)]
    )
    assert keeps("configs/dgc/wm5o.py") == [1, 1, 1, 1, 1]
    half = decoded(told("configs/dgc/fp16.py"), np.full(10, 0.1))
    np.testing.assert_array_equal(half[half != 0], np.float32(np.float16(0.1)))


def rates(config: Any, epochs: range, size: int = 50_000) -> np.ndarray:
    """The learning rate of a config's run in the first step of each epoch."""
    horizon = Horizon(size // config.batch_size, config.batch_size)
    degree = None
    if config.topology:
        degree = gossip.topology(config.topology, config.workers).degree
    rate = learning_rate(
        config.learning_rate,
        config.schedule,
        horizon=horizon,
        total=int(config.train_for.split()[0]) * horizon.steps_per_epoch,
        warmup=int(config.warmup.split()[0]) * horizon.steps_per_epoch,
        warmup_from=config.warmup_from,
        scaling=config.lr_scaling,
        workers=config.workers,
        degree=degree,
    )
    return np.array([float(rate(e * horizon.steps_per_epoch)) for e in epochs])


def test_the_rate_of_dgc_falls_by_half_a_cosine_after_its_warm_up():
    config = load_config("configs/papers/dgc_cifar10.py")
    epochs = range(200)
    warm = [0.1 * (1 + e * 7 / 5) for e in range(5)]
    theirs = [0.4 * (1 + math.cos(math.pi * (e - 5) / 195)) for e in epochs[5:]]
    # Here the rate of a step has risen when the step is done, there before it.
    np.testing.assert_allclose(rates(config, epochs), [*warm, *theirs], atol=0.004)


# ------------------------------------------------------------------------ CHOCO-SGD


@pytest.mark.parametrize("variant", ["ring8", "social32"])
def test_the_rate_of_choco_rises_from_its_own_to_the_scaled_one(variant):
    config = load_config(f"configs/papers/choco_cifar10.py:{variant}")
    base, heard = {"ring8": (24, 3), "social32": (64, 15)}[variant]
    peak = 0.1 / base * 128 * heard
    lines = [(0, 5, 0.1, peak), (5, 150, peak, peak)]
    lines += [(150, 225, peak / 10, peak / 10), (225, 300, peak / 100, peak / 100)]
    theirs = [
        left + (e - first) / (last - first) * (right - left)
        for first, last, left, right in lines
        for e in range(first, last)
    ]
    found = rates(config, range(300))
    np.testing.assert_allclose(found, theirs, atol=0.02 * peak)
    row = told("--lr_warmup", "warmup_from")  # of a ring, 128 images and a base of 64
    assert float(row) == pytest.approx(1 / (3 * 128 / 64))


def max_degree(adjacent: np.ndarray) -> np.ndarray:
    """As its graphs compute them: from the node with most neighbours to the others."""
    matrix, degrees = adjacent.astype(float), adjacent.sum(axis=1)
    for node in np.argsort(degrees)[::-1]:
        matrix[:, node][matrix[:, node] == 1] = 1 / degrees[node]
        matrix[node, :][matrix[node, :] == 1] = 1 / degrees[node]
        matrix[node, node] += 1 - matrix[node].sum()
    return matrix


def test_weights_of_unequal_graphs_are_those_of_choco():
    weights = told("`social`", "topology").removeprefix("social")
    women = gossip.topology("social", 32).matrix
    adjacent = (women > 0) & ~np.eye(32, dtype=bool)
    found = gossip.topology(f"social{weights}", 32).matrix
    np.testing.assert_allclose(found, max_degree(adjacent), atol=1e-12)
    for side in (3, 4):
        adjacent = np.zeros((side**2, side**2), bool)
        for x, y, odd in itertools.product(range(side), range(side), (0, 1)):
            here, right = x * side + y, (x + 2 * y + odd) % side * side + y
            up = x * side + (y + 2 * x + odd) % side
            for there in (right, up):
                adjacent[here, there] = adjacent[there, here] = True
        found = gossip.topology(f"margulis{weights}", side**2).matrix
        np.testing.assert_allclose(found, max_degree(adjacent), atol=1e-12)
    # A prime of which no inverse is a neighbour: a cycle and one chord, or loop, each.
    prime = 7
    inverse = [0, *(pow(i, -1, prime) for i in range(1, prime))]
    expected = sum(np.eye(prime)[columns] for columns in neighbours(prime, inverse)) / 3
    found = gossip.topology(f"expander{weights}", prime).matrix
    np.testing.assert_allclose(found, expected, atol=1e-12)


def neighbours(count: int, inverse: list[int]) -> list[list[int]]:
    each = list(range(count))
    return [each[1:] + each[:1], each[-1:] + each[:-1], inverse]


def test_its_quantiser_and_its_damping():
    plain, damped = told("--comm_op quantize_qsgd"), told("--is_biased")
    x, levels = heavy(2000), 2**16 - 1
    unit = np.linalg.norm(x) / levels
    check_levels(plain, x, unit)
    factor = 1 / (1 + min(x.size / levels**2, math.sqrt(x.size) / levels))
    check_levels(damped, x, unit, factor)


def test_signs_with_error_feedback_are_those_of_choco():
    """b = m b + g is sent; here its mean, a tenth of it."""
    memory = told("--optimizer ef_sign_sgd", "memory")
    gradients = heavy(10, WORKERS, 40)
    b, error, expected = np.zeros((2, 40)), np.zeros((2, 40)), []
    for g in gradients:
        b = 0.9 * b + g
        sent = np.array([by_mean(row) for row in b + error])
        error = b + error - sent
        expected.append(sent.mean(axis=0))
    found = 10 * steps(make_exchange("gather", "sign", memory), gradients)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def by_mean(x: np.ndarray) -> np.ndarray:
    return np.abs(x).mean() * np.where(x < 0, -1.0, 1.0)


def test_decay_is_of_all_but_batch_norm():
    names = {"Conv_0/kernel": True, "Dense_0/bias": True, "b/BatchNorm_1/scale": False}
    params = {name: jnp.zeros(2) for name in names}
    for there in ("--weight_decay 1e-4", "--no-bn-wd"):
        assert decaying(told(there, "decay"), params) == names


# --------------------------------------------------------------------- Wide ResNet


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("--compress=1 --svd_rank=0", lambda s: s / s[0]),
        ("`--svd_rank=3`", lambda s: 3 * s / s.sum()),
    ],
)
def test_triples_have_the_chances_of_the_original(there, expected):
    """A triple that is drawn is divided by its chance, so it tells it."""
    lengths = np.array([4.0, 3, 2, 1.5, 1, 0.5])
    u, v = (np.linalg.qr(heavy(n, 6, seed=n))[0] for n in (20, 12))
    x = (u * lengths) @ v.T
    drawn = outputs(told(there), x, 400).reshape(-1, *x.shape)
    along = np.einsum("mi,kmn,ni->ki", u, drawn, v)  # s_i / p_i, or 0
    p = expected(lengths)
    np.testing.assert_allclose(np.max(along, axis=0), lengths / p, rtol=1e-3)
    allowed = 5 * np.sqrt(p * (1 - p) / len(along)) + 1e-9
    assert (np.abs((along > 1e-3).mean(axis=0) - p) <= allowed).all()


def test_other_codes_of_the_wide_resnet():
    x = heavy(400)
    check_levels(told("--code qsgd"), x, np.linalg.norm(x))
    matrix = heavy(30, 20)
    u, s, v = np.linalg.svd(matrix)
    kept = (u[:, :3] * s[:3]) @ v[:3]
    np.testing.assert_allclose(
        decoded(told("--svd_rescale=0"), matrix), kept, atol=1e-4
    )
    # Clipped at 2.5 deviations, with the largest of what was not clipped: its mean.
    clipped = np.clip(x, -2.5 * x.std(), 2.5 * x.std())
    drawn = outputs(told("--code terngrad"), x, 4000)
    allowed = 6 * drawn.std(axis=0) / math.sqrt(4000) + 0.01
    assert (np.abs(drawn.mean(axis=0) - clipped) <= allowed).all()
