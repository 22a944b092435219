"""Plain JAX under shard_map: a perceptron, and a dict for its state."""

from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from examples.common import TEST, train

PARTS = 2  # of a batch, whose gradients are accumulated
mesh = Mesh(np.array(jax.devices()), "data")
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
    params = {"hidden": hidden, "out": out}
    return {
        "params": params,
        "frozen": embed,
        "opt": tx.init(params),
        "ema": params,
        "scale": jmp.DynamicLossScale(jnp.float32(2**10)),
    }


def train_step(state: Any, images: Any, labels: Any) -> tuple[Any, jax.Array]:
    """One step of one device."""
    scale = state["scale"]

    def loss_of(params: Any, images: Any, labels: Any) -> jax.Array:
        logits = logits_of(params, state["frozen"], images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return scale.scale(loss)

    def add_part(total: Any, part: Any) -> tuple[Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(own, *part)
        return jax.tree.map(jnp.add, total, grads), loss

    # Gradients of what is the device's own are not summed part by part.
    own = jax.lax.pcast(state["params"], "data", to="varying")
    parts = (images.reshape(PARTS, -1, 64), labels.reshape(PARTS, -1))
    total, losses = jax.lax.scan(add_part, jax.tree.map(jnp.zeros_like, own), parts)
    grads = jax.tree.map(lambda x: x / PARTS, scale.unscale(total))
    grads = jax.lax.pmean(grads, "data")

    old = {name: state[name] for name in ("params", "opt", "ema")}
    updates, opt = tx.update(grads, old["opt"], old["params"])
    params = optax.apply_updates(old["params"], updates)
    ema = optax.incremental_update(params, old["ema"], 0.1)
    finite = jmp.all_finite(grads)  # or the step is left out
    new = jmp.select_tree(finite, {"params": params, "opt": opt, "ema": ema}, old)
    loss = jax.lax.pmean(scale.unscale(losses.mean()), "data")
    return {**state, **new, "scale": scale.adjust(finite)}, loss


split = (P(), P("data"), P("data"))
step = jax.shard_map(train_step, mesh=mesh, in_specs=split, out_specs=(P(), P()))
step = jax.jit(step)


def accuracy(state: Any) -> float:
    """Of the averaged params."""
    images, labels = TEST
    logits = logits_of(state["ema"], state["frozen"], images)
    return float(np.mean(np.argmax(logits, -1) == labels))


if __name__ == "__main__":
    train(start, step, accuracy)
