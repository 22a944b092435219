"""Functions with collectives, taken apart: the same work without messages."""

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import make_exchange, wire
from jaxcomp.wire import first_message, without_messages

WORKERS = 4
TREE = {"b": jnp.ones(7), "w": jnp.ones((10, 9))}
# A branch, groups, and several collectives; tests/prediction takes all methods apart.
METHODS = [
    ("budget(bits_per_step=6000, every=2, ladder=[sign, block_scaled(4)])", "sign"),
    ("hierarchical(per_host=2)", "sign"),
    ("power_sgd(rank=1, min_rate=1)", None),
]


def traced(function):
    """The collectives of a function of one worker of the tree."""
    return wire.traced_collectives(function, TREE, axis="workers", workers=WORKERS)


@pytest.mark.parametrize(("exchange", "compressor"), METHODS, ids=lambda x: str(x)[:9])
def test_every_exchange_comes_apart(exchange, compressor):
    method = make_exchange(exchange, compressor, "none")

    def step(tree):
        return method.average(tree, method.init(tree), jax.random.key(0)).mean

    quiet, first = without_messages(step, "workers"), first_message(step, "workers")
    assert traced(step)
    assert not traced(quiet)
    assert not traced(first)
    stacked = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), TREE)
    both = [
        jax.eval_shape(jax.vmap(f, axis_name="workers"), stacked) for f in (step, quiet)
    ]
    assert both[0] == both[1]
    handed = jax.eval_shape(jax.vmap(first, axis_name="workers"), stacked)
    if "budget" not in exchange:  # it chooses its message by a branch
        sizes = {c.nbytes for c in traced(step)}
        assert wire.dense_bytes(handed) / WORKERS in sizes


def test_what_the_others_would_send_is_this_workers_own():
    mean = lambda x: jax.lax.pmean(3 * x, "workers")  # noqa: E731
    x = jnp.arange(4.0)
    run = jax.vmap(without_messages(mean, "workers"), axis_name="workers")
    assert run(x).tolist() == (3 * x / WORKERS).tolist()


def test_a_function_without_collectives_is_itself():
    run = jax.vmap(without_messages(jnp.sin, "workers"), axis_name="workers")
    x = jnp.arange(4.0)
    assert run(x).tolist() == jnp.sin(x).tolist()
    assert jax.vmap(first_message(jnp.sin, "workers"), axis_name="workers")(x) == []


def test_a_collective_in_a_loop_of_unknown_length_is_refused():
    def run(loop):
        return jax.vmap(without_messages(loop, "workers"), axis_name="workers")

    def mean(x):
        return jax.lax.pmean(x, "workers")

    counted = run(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: mean(x), x))
    assert counted(jnp.full(4, 64.0)).tolist() == [1.0] * 4
    with pytest.raises(wire.WireError, match="'while', of which nobody knows the leng"):
        run(lambda x: jax.lax.while_loop(lambda x: x < 3, mean, x))(jnp.ones(4))
