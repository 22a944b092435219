"""Haiku and jmp under pmap, in the manner of haiku's ImageNet example."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax

from examples.common import TEST, train

PARTS = 2  # of a batch, whose gradients are accumulated
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
policy = jmp.get_policy("params=float32,compute=float16,output=float32")


@hk.without_apply_rng
@hk.transform
def net(x: jax.Array) -> jax.Array:
    """A perceptron."""
    x = jax.nn.relu(hk.Linear(64, name="embed")(x))
    return hk.nets.MLP([128, 10], name="head")(x)


def start() -> dict[str, Any]:
    """The state before the first step."""
    params = net.init(jax.random.key(0), jnp.zeros((1, 64)))
    frozen, params = hk.data_structures.partition(
        lambda module, name, value: module == "embed", params
    )
    return {
        "params": params,
        "frozen": frozen,
        "opt": tx.init(params),
        "ema": params,
        "scale": jmp.DynamicLossScale(jnp.float32(2**10)),
    }


def logits_of(params: Any, frozen: Any, images: Any) -> jax.Array:
    whole = hk.data_structures.merge(params, frozen)
    return policy.cast_to_output(net.apply(*policy.cast_to_compute((whole, images))))


def train_step(state: Any, images: Any, labels: Any) -> tuple[Any, jax.Array]:
    """One step of one device."""
    scale = state["scale"]

    def loss_of(params: Any, images: Any, labels: Any) -> jax.Array:
        logits = logits_of(params, state["frozen"], images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return scale.scale(loss)

    def add_part(total: Any, part: Any) -> tuple[Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state["params"], *part)
        return jax.tree.map(jnp.add, total, grads), loss

    parts = (images.reshape(PARTS, -1, 64), labels.reshape(PARTS, -1))
    zeros = jax.tree.map(jnp.zeros_like, state["params"])
    total, losses = jax.lax.scan(add_part, zeros, parts)
    grads = jax.tree.map(lambda x: x / PARTS, scale.unscale(total))
    grads = jax.lax.pmean(grads, "i")

    old = {name: state[name] for name in ("params", "opt", "ema")}
    updates, opt = tx.update(grads, old["opt"], old["params"])
    params = optax.apply_updates(old["params"], updates)
    ema = optax.incremental_update(params, old["ema"], 0.1)
    finite = jmp.all_finite(grads)  # or the step is left out
    new = jmp.select_tree(finite, {"params": params, "opt": opt, "ema": ema}, old)
    loss = jax.lax.pmean(scale.unscale(losses.mean()), "i")
    return {**state, **new, "scale": scale.adjust(finite)}, loss


mapped = jax.pmap(train_step, "i", in_axes=(None, 0, 0), out_axes=(None, None))


def step(state: Any, images: Any, labels: Any) -> tuple[Any, jax.Array]:
    """One step of all devices."""
    shares = (jax.device_count(), -1)
    return mapped(state, images.reshape(*shares, 64), labels.reshape(shares))


def accuracy(state: Any) -> float:
    """Of the averaged params."""
    images, labels = TEST
    logits = logits_of(state["ema"], state["frozen"], images)
    return float(np.mean(np.argmax(logits, -1) == labels))


if __name__ == "__main__":
    train(start, step, accuracy)
