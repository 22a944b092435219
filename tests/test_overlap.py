"""A gradient that is sent in parts: the same numbers, in the order of the layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import UserError, make_exchange, training
from jaxcomp.exchanges.overlap import Cut, ready_order
from tests import workers
from tests.tiers import tiers
from tests.training.small import built, small_config

WORKERS = 4
EXCHANGES = {
    "top_k": ("gather", "top_k(keep=0.1)", "error_feedback"),
    "qsgd": ("gather", "qsgd(levels=7, norm=max)", "none"),
    "norms": ("gather", "qsgd(levels=7)", "none"),
    "dgc": ("gather", "dgc_top_k(keep=0.1)", "dgc"),
    "ef21": ("gather", "threshold(v=0.5, cap=0.2)", "ef21"),
    "two_phase": ("two_phase", "terngrad", "none"),
    "power_sgd": ("power_sgd(rank=1, min_rate=1)", None, "error_feedback"),
}


def exchange_of(name, overlap=1):
    return make_exchange(*EXCHANGES[name], overlap=overlap)


@functools.cache
def stepped(exchange):
    def step(state, x):
        out = exchange.average(x, state, jax.random.key(0))
        held = exchange.held(out.state) if exchange.held else ()
        return out.mean, (out.sent, held, out.info), out.state

    return step


def follow(exchange, mapper="vmap"):
    """What two steps give: the means, what was sent and held, and the reports."""
    one = jax.tree.map(lambda x: x[0], workers.gradients(WORKERS))
    inputs = [workers.gradients(WORKERS, seed) for seed in range(2)]
    found = workers.run(
        stepped(exchange), exchange.init(one), inputs, mapper=mapper, workers=WORKERS
    )
    return [(step.shared, step.own[:2]) for step in found], [s.own[2] for s in found]


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def close(found, expected):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    jax.tree.map(compare, found, expected)


# What a worker keeps is cut alike in all memories, and draws are those of `norms`.
@pytest.mark.parametrize(
    "name", tiers(EXCHANGES, lambda name: name not in ("qsgd", "ef21"))
)
def test_parts_give_the_same_numbers(name):
    """To the bit, but where a compiler may add up a norm in another way."""
    numbers, reports = follow(exchange_of(name))
    of_parts, reports_of_parts = follow(exchange_of(name, 3))
    compare = close if name == "norms" else same
    compare(of_parts, numbers)
    close(reports_of_parts, reports)


RANDOM = {
    "budget(bits_per_step=9000, ladder=[qsgd(levels=1)])": "sign",
    "hierarchical(outer=budget(9000, ladder=[qsgd(1)]), per_host=1)": "sign",
    "sparse_reduce(values=qsgd(levels=1))": "top_k(keep=0.4)",
    "gather": "qsgd(levels=1)",
    "hierarchical(per_host=1)": "qsgd(levels=1)",
    "shared_scale": None,
    "simulated": "random_k(keep=0.3, unbiased=True)",
    "aligned_psum": "random_k(keep=0.3, unbiased=True)",
    "two_phase": "qsgd(levels=1)",
}


@pytest.mark.parametrize(
    "spec", tiers(RANDOM, lambda spec: spec.startswith(("budget", "sparse_reduce")))
)
def test_parts_draw_apart(spec):
    """What two tensors of equal elements lose is not the same, so it averages out."""
    exchange = make_exchange(spec, RANDOM[spec], "none", overlap=2)
    x = jax.random.normal(jax.random.key(1), (1, 40, 9))
    [step] = workers.run(
        stepped(exchange),
        exchange.init({"a": x[0], "b": x[0]}),
        [{"a": x, "b": x}],
        mapper="vmap",
        workers=1,
    )
    assert np.any(step.shared["a"] != step.shared["b"])
    lost = [np.ravel(step.shared[name] - x[0]) for name in "ab"]
    assert np.corrcoef(lost[0], lost[1])[0, 1] < 0.6


def test_each_part_has_a_message():
    tree = jax.tree.map(lambda x: x[0], workers.gradients(2))
    counts = []
    for parts in (1, 3):
        exchange = exchange_of("top_k", parts)
        found = jaxcomp.wire.traced_collectives(
            stepped(exchange), exchange.init(tree), tree, axis="workers", workers=2
        )
        counts.append([c.kind for c in found])
    assert counts == [["all-gather"], ["all-gather"] * 3]


def test_facts_belong_to_their_leaves():
    policy = [("deep", "none"), ("*", "top_k(keep=0.5)")]
    built = functools.partial(
        make_exchange, compressor="top_k(keep=0.5)", policy=policy
    )
    exchange, parts = built(), built(overlap=2)  # in which bias comes behind deep
    tree = jax.tree.map(lambda x: x[0], workers.gradients(2))
    assert parts.contraction(tree) == exchange.contraction(tree)
    assert parts.chooses(tree) == exchange.chooses(tree)
    assert parts.init({}).parts == (exchange.init({}),)


# --- The order of the parts -----------------------------------------------------------


def test_without_an_order_numbers_of_layers_count():
    tree = {f"layer_{i}": jnp.zeros(8) for i in range(12)}
    names = sorted(tree)
    first, *_ = Cut(4).places(tree)
    assert {names[i] for i in first} == {"layer_9", "layer_10", "layer_11"}


def test_calls_are_looked_into_and_loops_are_not():
    @jax.checkpoint
    def layer(w, x):
        return jax.jit(jnp.tanh)(w * x)

    def loss(params, x):
        x = layer(params["a"], x)
        x, _ = jax.lax.scan(lambda x, w: (jnp.sin(w * x), None), x, params["b"])
        return layer(params["c"], x)

    params = {"a": 1.0, "b": jnp.ones(3), "c": 1.0}
    order = ready_order(jax.grad(loss), params, 2.0)
    assert order["c"] < order["b"] < order["a"]


def test_an_order_of_other_params_is_refused():
    cut = Cut(2, order={"a": 1})
    with pytest.raises(UserError, match=r"no number for b: trace the gradient"):
        cut.places({"a": jnp.zeros(2), "b": jnp.zeros(2)})
    with pytest.raises(ValueError, match="overlap is"):
        exchange_of("top_k", 0)


# --- In loops -------------------------------------------------------------------------


def test_mixers_are_refused():
    config = small_config(mixer="choco(gamma=0.4)", topology="ring", overlap=2)
    config.update(exchange="", memory="none")
    with pytest.raises(UserError, match="sends models.*choco_overlapped"):
        built(config)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("leaf", ["kernel", "bias"])
def test_a_bad_number_in_any_part_is_seen_by_all(bad, leaf):
    """A sparsifier of one vector may leave a single NaN out."""
    method = "random_k(keep=0.02)"
    exchange = make_exchange(compressor=method, scope="whole_tree", overlap=2)
    mean = jaxcomp.pmean(exchange, seed=0)
    tx = optax.chain(jaxcomp.distributed(exchange, seed=0), optax.sgd(0.1))
    tx = jaxcomp.skip_nonfinite(tx, exchange=exchange)
    tree = {"kernel": jnp.ones((2, 40, 9)), "bias": jnp.ones((2, 300))}
    one = jax.tree.map(lambda x: x[0], tree)
    tree[leaf] = tree[leaf].at[(1,) + (0,) * (tree[leaf].ndim - 1)].set(bad)
    comm, state = mean.init(one), tx.init(one)

    def step(x):
        return mean(x, comm), tx.update(x, state)

    (found, after), (updates, skipped) = jax.jit(jax.vmap(step, axis_name="workers"))(
        tree
    )
    assert not np.isfinite(
        np.concatenate([x.ravel() for x in jax.tree.leaves(found)])
    ).all()
    assert not any(np.any(x) for x in jax.tree.leaves(updates))
    for new in (after, skipped):
        [link] = jaxcomp.find_states(new)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(link.exchange))


def test_a_run_in_parts_is_the_same_run(tmp_path):
    changes = {"scope": "per_leaf", "train_for": "2 steps", "eval_every": "1 epoch"}
    runs = [
        training.train_and_evaluate(
            small_config(overlap=parts, **changes), tmp_path / str(parts)
        )
        for parts in (1, 3)
    ]
    # Two compiled backward passes, which may round differently.
    close(*(run.state.params for run in runs))
    with pytest.raises(ValueError, match="overlap: the folder has 3, you ask for 2"):
        training.train_and_evaluate(small_config(overlap=2, **changes), tmp_path / "3")
