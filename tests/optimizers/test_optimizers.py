"""Whole optimisers: the papers' formulas in NumPy, and what the trainer computes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import SpecError, parallel
from jaxcomp.compressors import REGISTRY as COMPRESSORS
from jaxcomp.memory import error_feedback
from jaxcomp.training.optimizers import REGISTRY as TRAINED
from jaxcomp.training.optimizers import OptimizerSetting
from jaxcomp.transforms import optimizers
from tests.references import optimizers as references
from tests.tiers import tiers
from tests.training.test_optimizers import follow

WORKERS, SIZE, RATE, DECAY, STEPS, DENSE = 3, 12, 0.1, 0.01, 12, 5
START = np.linspace(-1, 1, SIZE).astype(np.float32)
GRADS = np.random.default_rng(0).normal(size=(STEPS, WORKERS, SIZE)).astype(np.float32)
make_exchange = functools.partial(jaxcomp.make_exchange, memory="none")
SIGNS, VOTE = make_exchange("gather", "sign"), make_exchange("majority_vote")
TERNARY = make_exchange("gather", "terngrad")
LARGEST = "top_k(keep=0.25)"


def largest(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) >= np.sort(np.abs(x))[-3], x, 0)


class Case(NamedTuple):
    """An optimiser, its formula, and the trainer's settings for the same."""

    tx: Callable[..., optax.GradientTransformationExtraArgs]  # (rate, weight_decay=)
    reference: Callable[..., list[np.ndarray]]
    settings: dict[str, Any]
    dense_steps: int = 0


def voting(memory: str) -> dict[str, Any]:
    return {
        "exchange": "majority_vote",
        "memory": memory,
        "optimizer": "sgd(momentum=0)",
    }


def dgc(nesterov: bool) -> Case:
    arguments = f"(momentum=0.8, nesterov={nesterov})"
    return Case(
        functools.partial(
            optimizers.dgc_sgd,
            exchange=make_exchange(compressor=LARGEST),
            momentum=0.8,
            nesterov=nesterov,
        ),
        functools.partial(
            references.dgc_sgd, compress=largest, momentum=0.8, nesterov=nesterov
        ),
        {
            "compressor": LARGEST,
            "memory": f"dgc{arguments}",
            "optimizer": f"dgc_sgd{arguments}",
        },
    )


CASES = {
    "dgc_sgd": dgc(nesterov=False),
    "dgc_sgd, nesterov": dgc(nesterov=True),
    "ef_signsgd": Case(
        functools.partial(optimizers.ef_signsgd, exchange=SIGNS),
        references.ef_signsgd,
        {"compressor": "sign", "optimizer": "sgd(momentum=0)"},
    ),
    "lion": Case(
        functools.partial(optimizers.lion, exchange=VOTE, b1=0.8, b2=0.95),
        functools.partial(references.lion, b1=0.8, b2=0.95),
        voting("local_momentum(beta=0.95, blend=0.8)"),
    ),
    "one_bit_adam": Case(
        functools.partial(
            optimizers.one_bit_adam,
            exchange=SIGNS,
            dense_steps=DENSE,
            b1=0.8,
            b2=0.99,
        ),
        functools.partial(references.one_bit_adam, dense_steps=DENSE, b1=0.8, b2=0.99),
        {
            "compressor": "sign",
            "memory": "shared_momentum(beta=0.8) | error_feedback",
            "optimizer": "one_bit_adam(b2=0.99)",
        },
        dense_steps=DENSE,
    ),
    "signum": Case(
        functools.partial(optimizers.signum, exchange=VOTE, beta=0.8),
        functools.partial(references.signum, beta=0.8),
        voting("local_momentum(beta=0.8)"),
    ),
}


def path_of(tx: optax.GradientTransformationExtraArgs) -> list[np.ndarray]:
    """Weights after each step; all workers have the same."""
    state = jax.vmap(lambda _: tx.init(START))(jnp.arange(WORKERS))
    params: Any = jnp.stack([START] * WORKERS)
    step = jax.vmap(
        lambda g, s, p: tx.update(g, s, p, key=jax.random.key(0)), axis_name="workers"
    )
    path = []
    for grad in GRADS:
        update, state = step(grad, state, params)
        params = params + update
        path.append(np.asarray(params))
        np.testing.assert_array_equal(path[-1], np.tile(path[-1][:1], (WORKERS, 1)))
    return [rows[0] for rows in path]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_its_formula_and_what_the_trainer_computes(case):
    ours = path_of(case.tx(RATE, weight_decay=DECAY))
    path = case.reference(GRADS, START, RATE, DECAY)
    np.testing.assert_allclose(ours, path, rtol=2e-3, atol=2e-3)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by counts
        trained = follow(GRADS, case.dense_steps, DECAY, **case.settings)
    np.testing.assert_array_equal(ours, trained)


def test_lion_of_one_worker_is_lion():
    tx = optimizers.lion(RATE, VOTE, weight_decay=DECAY, seed=0)
    theirs = optax.lion(RATE, weight_decay=DECAY)
    update: Any
    expected: Any
    state, their_state = tx.init(START), theirs.init(START)
    step = jax.vmap(tx.update, in_axes=(0, None, None), axis_name="workers")
    with jax.numpy_dtype_promotion("standard"):
        update, _ = jax.jit(step)(GRADS[0][:1], state, START)
        expected, _ = jax.jit(theirs.update)(GRADS[0][0], their_state, START)
    np.testing.assert_allclose(update[0], expected, rtol=1e-6)


def test_the_rate_may_be_a_schedule():
    """A function of the number of the step."""
    tx = optimizers.signum(optax.exponential_decay(1.0, 1, 0.5), VOTE, seed=0)
    state = jax.vmap(lambda _: tx.init(START))(jnp.arange(WORKERS))
    step = jax.jit(jax.vmap(tx.update, axis_name="workers"))
    update: Any
    lengths = []
    for _ in range(3):
        with jax.numpy_dtype_promotion("standard"):  # optax divides its counts
            update, state = step(GRADS[0], state)
        lengths.append(float(jnp.max(jnp.abs(update))))
    assert lengths == [1, 0.5, 0.25]


def test_one_bit_adam_in_a_loop_whose_types_are_checked():
    """Both ways have one type; residuals are each worker's, and moments everybody's."""
    exchange = make_exchange("two_phase", "sign")
    tx = optimizers.one_bit_adam(RATE, exchange, dense_steps=1, seed=0)
    crew = parallel.setup(2, "shard_map")
    assert crew.mesh is not None
    params = {"w": jnp.asarray(START), "b": jnp.zeros(3)}
    state = parallel.spread(tx.init(params), crew)

    def step(grads, state):
        return tx.update(jax.tree.map(lambda g: g[0], grads), state)

    mapped = jaxcomp.shard_map(
        step, mesh=crew.mesh, in_specs=(P(crew.axis), P()), out_specs=P()
    )
    grads = {"w": GRADS[0][:2], "b": GRADS[1][:2, :3]}
    update = None
    for _ in range(3):
        update, state = jax.jit(mapped)(grads, state)
    jaxcomp.check_state(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(update))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optimizers.one_bit_adam(RATE, SIGNS, 0), "dense_steps.*not 0"),
        (lambda: optimizers.one_bit_adam(RATE, SIGNS, 5, b1=1.0), r"b1.*not 1\.0"),
        (lambda: optimizers.one_bit_adam(RATE, SIGNS, 5, b2=1.0), r"b2.*not 1\.0"),
        (lambda: optimizers.one_bit_adam(RATE, VOTE, 5), "majority_vote"),
        (lambda: optimizers.ef_signsgd(RATE, VOTE), "majority_vote"),
        (lambda: optimizers.signum(RATE, VOTE, beta=1.5), r"beta.*not 1\.5"),
        (lambda: optimizers.dgc_sgd(RATE, SIGNS, momentum=1.0), r"momentum.*not 1\.0"),
        (
            lambda: optimizers.ef_signsgd(RATE, jaxcomp.make_exchange("gather")),
            "ef_signsgd.*own memory.*'error_feedback.*memory='none'",
        ),
        (lambda: optimizers.signum(-0.1, VOTE), "rate.*not -0.1"),
        (lambda: optimizers.lion(float("nan"), VOTE), "rate.*not nan"),
        (
            lambda: optimizers.signum(RATE, "majority_vote"),  # pyright: ignore
            "signum takes an Exchange from make_exchange, not 'majority_vote'",
        ),
        (
            lambda: optimizers.ef_signsgd(RATE, TERNARY, seed=0).init(START),
            "terngrad",  # it has no contraction
        ),
    ],
)
def test_what_does_not_go_together_is_refused(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


# --- What has no gradient ----------------------------------------------------------


def of_trainer(name, rate, exchange):
    optimizer = TRAINED[name](OptimizerSetting(optax.constant_schedule(rate)))
    link = jaxcomp.distributed(error_feedback(exchange))
    return optax.with_extra_args_support(optax.chain(link, optimizer))


WHOLE = {name: case.tx for name, case in CASES.items() if "," not in name}
MADE = {name: functools.partial(of_trainer, name) for name in TRAINED} | WHOLE
SENT = (*(("gather", name) for name in COMPRESSORS), ("two_phase", "sign"))
QUICK = {("gather", "count_sketch"), ("two_phase", "sign")}


@pytest.mark.parametrize(
    ("name", "sent"),
    tiers(
        itertools.product(MADE, SENT),
        lambda case: case[0] in ("lamb", "one_bit_adam") and case[1] in QUICK,
    ),
)
def test_what_never_has_a_gradient_stays_where_it_is(name, sent):
    """A tensor; under the frozen variance of Adam also the rows of one, in any scope.

    Signs and sketches answer something for a zero among others, and others follow it.
    """
    scope = "whole_tree" if name == "one_bit_adam" else "per_leaf"
    exchange = make_exchange(*sent, scope=scope)
    settings = {"dense_steps": 2} if name == "one_bit_adam" else {}
    start = {"dead": jnp.linspace(-1, 1, 5), "live": jnp.ones((6, 4))}
    dead = {"dead": np.s_[:], "live": np.s_[: 2 if settings else 0]}
    try:
        tx = MADE[name](RATE, exchange=exchange, **settings)
        state: Any = jax.vmap(lambda _: tx.init(start))(jnp.arange(WORKERS))
    except SpecError:  # such as one without a contraction
        return

    @functools.partial(jax.vmap, axis_name="workers", in_axes=(0, 0, None))
    def step(gradient, state, x):
        given = {"dead": jnp.zeros(5), "live": gradient.reshape(6, 4)}
        return tx.update(given, state, x, key=jax.random.key(0))

    draws = np.random.default_rng(0).normal(size=(6, WORKERS, 6, 4))
    draws[:, :, :2] = 0
    x: Any = start
    for gradient in draws.astype(np.float32):
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies by counts
            updates, state = jax.jit(step)(gradient, state, x)
        x = jax.tree.map(lambda x, u: x + u[0], x, updates)
    for leaf, rows in dead.items():
        np.testing.assert_array_equal(x[leaf][rows], start[leaf][rows])
    assert np.isfinite(x["live"]).all()


def test_a_nan_reaches_what_does_not_move():
    link = optimizers.scale_by_one_bit_adam(dense_steps=1)
    params, bad = jnp.zeros(2), jnp.array([jnp.nan, 1.0])
    _, state = link.update(params, link.init(params))
    update, _ = link.update(bad, state)
    np.testing.assert_array_equal(update, [np.nan, 0])


def test_a_full_clock_is_no_first_step():
    """As after 2^31 - 1 steps, of which the dense ones were the first."""
    tx = optimizers.one_bit_adam(RATE, SIGNS, dense_steps=2, seed=0)
    full = jnp.int32(2**31 - 1)

    def aged(node):
        return full if isinstance(node, jax.Array) and node.dtype == jnp.int32 else node

    state: Any = jax.tree.map(aged, tx.init(START))
    after: Any = jax.vmap(lambda g: tx.update(g, state, START)[1], axis_name="workers")(
        GRADS[0]
    )
    scaled = after[1]
    assert np.all(scaled.clock.step > 2**29)
    assert np.all(scaled.arrived > 2**29)
    np.testing.assert_array_equal(scaled.variance, 0)  # nothing is learnt
