"""Equinox under filter_jit, in the manner of its parallelism example."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.common import TEST, train

PARTS = 2  # of a batch, whose gradients are accumulated
mesh = Mesh(np.array(jax.devices()), "data")
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


class Net(eqx.Module):
    """A perceptron that computes in float16."""

    layers: list[eqx.nn.Linear]
    activation: Any = jax.nn.relu

    def __init__(self, key: jax.Array):
        sizes = zip((64, 64, 128), (64, 128, 10), jax.random.split(key, 3), strict=True)
        self.layers = [eqx.nn.Linear(a, b, key=key) for a, b, key in sizes]

    def __call__(self, x: jax.Array) -> jax.Array:
        half = jax.tree.map(jnp.float16, eqx.filter(self.layers, eqx.is_array))
        *hidden, last = eqx.combine(half, self.layers)
        for layer in hidden:
            x = self.activation(layer(jnp.float16(x)))
        return jnp.float32(last(x))


class Scale(eqx.Module):
    """A dynamic loss scale."""

    value: jax.Array
    steps: jax.Array  # since it changed

    def adjust(self, finite: jax.Array) -> "Scale":
        grows = finite & (self.steps == 1999)
        value = self.value * jnp.where(finite, jnp.where(grows, 2.0, 1.0), 0.5)
        return Scale(
            jnp.maximum(value, 1), jnp.where(finite & ~grows, self.steps + 1, 0)
        )


def start() -> dict[str, Any]:
    """The state before the first step."""
    model = Net(jax.random.key(0))
    is_trained = jax.tree.map(eqx.is_inexact_array, model)
    is_trained = eqx.tree_at(
        lambda m: m.layers[0],
        is_trained,
        jax.tree.map(lambda _: False, model.layers[0]),
    )
    params, frozen = eqx.partition(model, is_trained)
    return {
        "params": params,
        "frozen": frozen,
        "opt": tx.init(params),
        "ema": params,
        "scale": Scale(jnp.float32(2**10), jnp.int32(0)),
    }


def loss_and_grads(params: Any, batch: Any, others: Any) -> tuple[jax.Array, Any]:
    """The mean over the parts of a batch."""

    def loss_of(params: Any, images: Any, labels: Any) -> jax.Array:
        logits = jax.vmap(eqx.combine(params, others["frozen"]))(images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss * others["scale"].value

    # Every part has images of every device.
    images, labels = batch
    of_part = eqx.filter_value_and_grad(loss_of)
    found = [of_part(params, images[i::PARTS], labels[i::PARTS]) for i in range(PARTS)]
    count = PARTS * others["scale"].value
    return jax.tree.map(lambda *x: sum(x) / count, *found)


@eqx.filter_jit
def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    """One step, of global arrays."""
    scale, others = state["scale"], {name: state[name] for name in ("frozen", "scale")}
    loss, grads = loss_and_grads(state["params"], batch, others)
    old = {name: state[name] for name in ("params", "opt", "ema")}
    updates, opt = tx.update(grads, old["opt"], old["params"])
    params = eqx.apply_updates(old["params"], updates)
    ema = optax.incremental_update(params, old["ema"], 0.1)
    finite = jmp.all_finite(grads)  # or the step is left out
    new = jmp.select_tree(finite, {"params": params, "opt": opt, "ema": ema}, old)
    return {**state, **new, "scale": scale.adjust(finite)}, loss


def step(state: Any, images: Any, labels: Any) -> tuple[Any, jax.Array]:
    """One step, of a batch from the host."""
    batch = jax.device_put((images, labels), NamedSharding(mesh, P("data")))
    return train_step(state, batch)


def accuracy(state: Any) -> float:
    """Of the averaged params."""
    images, labels = TEST
    logits = jax.vmap(eqx.combine(state["ema"], state["frozen"]))(images)
    return float(np.mean(np.argmax(logits, -1) == labels))


if __name__ == "__main__":
    train(start, step, accuracy)
