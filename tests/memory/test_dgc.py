"""Deep Gradient Compression against the formulas, step by step in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import make_exchange
from tests.workers import take

WORKERS, STEPS, KEEP, M = 3, 50, 0.05, 0.9


def inputs(workers=WORKERS, steps=STEPS):
    """A large tensor that is compressed and a small one that goes dense."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=(workers, *shape)), jnp.float32)

    return [{"bias": draw(5), "kernel": draw(20, 10)} for _ in range(steps)]


def top_k(vector, count):
    """Places of the `count` largest magnitudes."""
    return np.argsort(-np.abs(vector), kind="stable")[:count]


def reference(trees, *, nesterov, masking, clip=None):
    """Means over the workers, with every worker's u and v as rows."""
    workers = trees[0]["kernel"].shape[0]
    u = {k: np.zeros((workers, x[0].size), np.float32) for k, x in trees[0].items()}
    v = {k: np.zeros_like(x) for k, x in u.items()}
    dense_u = np.zeros(trees[0]["bias"].shape[1], np.float32)
    m = np.float32(M)
    means = []
    for tree in trees:
        g = {k: np.asarray(x).reshape(workers, -1).copy() for k, x in tree.items()}
        if clip is not None:
            for i in range(workers):
                length = np.sqrt(sum(np.square(x[i]).sum() for x in g.values()))
                for x in g.values():
                    x[i] *= min(1, clip / np.sqrt(workers) / length)
        mean = {}
        # Dense tensors: the mean first, momentum after it.
        average = g["bias"].mean(axis=0)
        dense_u = m * (dense_u + average) if nesterov else m * dense_u + average
        mean["bias"] = dense_u + average if nesterov else dense_u
        # Large ones: local momentum, selection, masking.
        sent = np.zeros_like(g["kernel"])
        for i in range(workers):
            if nesterov:
                u["kernel"][i] = m * (u["kernel"][i] + g["kernel"][i])
                v["kernel"][i] += u["kernel"][i] + g["kernel"][i]
            else:
                u["kernel"][i] = m * u["kernel"][i] + g["kernel"][i]
                v["kernel"][i] += u["kernel"][i]
            chosen = top_k(v["kernel"][i], round(KEEP * v["kernel"][i].size))
            sent[i, chosen] = v["kernel"][i, chosen]
            v["kernel"][i, chosen] = 0
            if masking:
                u["kernel"][i, chosen] = 0
        mean["kernel"] = sent.mean(axis=0)
        means.append(mean)
    return means, v


def exchange_for(memory, compressor=f"top_k(keep={KEEP})", **more):
    return make_exchange(
        "gather", compressor, memory, policy=[("ndim<2", "none")], **more
    )


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_fifty_steps_of_the_formulas(nesterov, masking):
    trees = inputs()
    expected, v = reference(trees, nesterov=nesterov, masking=masking)
    memory = f"dgc(momentum={M}, nesterov={nesterov}, masking={masking})"
    steps = take(exchange_for(memory), *trees)
    for step, mean in zip(steps, expected, strict=True):
        for name, value in mean.items():
            got = step.shared[name].reshape(-1)
            np.testing.assert_allclose(got, value, rtol=2e-4, atol=2e-4)
    kept = steps[-1].state[1].velocity.value["kernel"].reshape(WORKERS, -1)
    np.testing.assert_allclose(kept, v["kernel"], rtol=2e-4, atol=2e-4)


def test_clipping_divides_the_limit_by_the_root_of_the_workers():
    trees = inputs(steps=5)
    expected, _ = reference(trees, nesterov=False, masking=True, clip=2.0)
    steps = take(exchange_for("dgc(clip=2.0)"), *trees)
    for step, mean in zip(steps, expected, strict=True):
        for name, value in mean.items():
            got = step.shared[name].reshape(-1)
            np.testing.assert_allclose(got, value, rtol=2e-4, atol=2e-5)


def test_clipping_each_tensor_by_itself():
    tree = {"a": jnp.full((1, 4, 2), 10.0), "b": jnp.full((1, 2, 2), 0.01)}
    exchange = make_exchange("exact", memory="dgc(clip=1.0, clip_each=True)")
    [step] = take(exchange, tree)
    assert np.linalg.norm(step.shared["a"]) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(step.shared["b"], 0.01)


def test_a_dense_step_is_momentum_sgd_and_empties_the_velocity():
    """As a flush, or as dense first epochs: with the state of the compressed step."""
    trees = inputs(steps=4)
    exchange, dense = exchange_for("dgc"), exchange_for("dgc", dense=True)
    first = take(exchange, *trees[:3])[-1]
    one = jax.tree.map(lambda x: x[0], trees[0])
    same = jax.tree.structure(exchange.init(one)) == jax.tree.structure(dense.init(one))
    assert same
    key = jax.random.key(0)
    axes = jax.tree.map(lambda x: 0, first.state[1])
    mapped = jax.vmap(
        lambda s, x: dense.average(x, s, key), in_axes=(axes, 0), axis_name="workers"
    )
    result = mapped(first.state[1], trees[3])
    old = first.state[1]
    u = M * old.momentum.value["kernel"] + np.asarray(trees[3]["kernel"])
    v = old.velocity.value["kernel"] + u
    np.testing.assert_allclose(
        result.mean["kernel"][0], v.mean(axis=0), rtol=1e-4, atol=1e-5
    )
    assert not np.any(result.state.velocity.value["kernel"])
    np.testing.assert_allclose(
        result.state.momentum.value["kernel"], u, rtol=1e-5, atol=1e-6
    )
