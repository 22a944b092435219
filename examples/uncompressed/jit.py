"""Plain JAX under jit: arrays on a mesh of data and model, and a dict of state."""

from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.common import TEST, train

PARTS = 2  # of a batch, whose gradients are accumulated
CUT = 2 if jax.device_count() % 2 == 0 else 1  # devices that share a model
mesh = Mesh(np.array(jax.devices()).reshape(-1, CUT), ("data", "model"))
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def logits_of(params: Any, frozen: Any, x: Any) -> jax.Array:
    """A perceptron that computes in float16."""
    for layer in (frozen, params["hidden"]):
        x = jax.nn.relu(jnp.float16(x) @ jnp.float16(layer))
    return jnp.float32(x @ jnp.float16(params["out"]))


def start() -> dict[str, Any]:
    """The state before the first step."""
    keys = jax.random.split(jax.random.key(0), 3)
    embed, hidden, out = (
        jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5
        for key, shape in zip(keys, [(64, 64), (64, 128), (128, 10)], strict=True)
    )
    params = {
        "hidden": jax.device_put(hidden, NamedSharding(mesh, P(None, "model"))),
        "out": jax.device_put(out, NamedSharding(mesh, P("model"))),
    }
    return {
        "params": params,
        "frozen": embed,
        "opt": tx.init(params),
        "ema": params,
        "scale": jmp.DynamicLossScale(jnp.float32(2**10)),
    }


def loss_and_grads(params: Any, batch: Any, others: Any) -> tuple[jax.Array, Any]:
    """The mean over the parts of a batch."""
    scale = others["scale"]

    def loss_of(params: Any, images: Any, labels: Any) -> jax.Array:
        logits = logits_of(params, others["frozen"], images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return scale.scale(loss)

    def add_part(total: Any, part: Any) -> tuple[Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, *part)
        return jax.tree.map(jnp.add, total, grads), loss

    # Every part has images of every device.
    images, labels = batch
    parts = (images.reshape(-1, PARTS, 64), labels.reshape(-1, PARTS))
    parts = jax.tree.map(lambda x: x.swapaxes(0, 1), parts)
    zeros = jax.tree.map(jnp.zeros_like, params)
    total, losses = jax.lax.scan(add_part, zeros, parts)
    grads = jax.tree.map(lambda x: x / PARTS, scale.unscale(total))
    return scale.unscale(losses.mean()), grads


@jax.jit
def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    """One step, of global arrays."""
    scale, others = state["scale"], {name: state[name] for name in ("frozen", "scale")}
    loss, grads = loss_and_grads(state["params"], batch, others)
    old = {name: state[name] for name in ("params", "opt", "ema")}
    updates, opt = tx.update(grads, old["opt"], old["params"])
    params = optax.apply_updates(old["params"], updates)
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
    logits = logits_of(state["ema"], state["frozen"], images)
    return float(np.mean(np.argmax(logits, -1) == labels))


if __name__ == "__main__":
    train(start, step, accuracy)
