"""Flax's TrainState under pmap, replicated by its axes, as flax's ImageNet example."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax.training.train_state import TrainState

import jaxcomp
from examples.common import TEST, train

PARTS = 2  # of a batch, whose gradients are accumulated
FROZEN = "embed"
exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.1)", axis="batch")


class Net(nn.Module):
    """A perceptron that computes in float16."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(64, dtype=jnp.float16, name=FROZEN)(x))
        x = nn.relu(nn.Dense(128, dtype=jnp.float16, name="hidden")(x))
        return nn.Dense(10, dtype=jnp.float16, name="out")(x).astype(jnp.float32)


class State(TrainState):
    """What a step changes."""

    ema: Any
    scale: jmp.DynamicLossScale


def start() -> State:
    """The state before the first step."""
    params = Net().init(jax.random.key(0), jnp.zeros((1, 64)))["params"]
    kinds = {name: "frozen" if name == FROZEN else "trained" for name in params}
    tx = optax.chain(
        jaxcomp.distributed(exchange, seed=0, allow_masked=True),
        optax.clip_by_global_norm(1.0),
        optax.adam(1e-2),
    )
    tx = optax.multi_transform({"trained": tx, "frozen": optax.set_to_zero()}, kinds)
    scale = jmp.DynamicLossScale(jnp.float32(2**10))
    fields = {"apply_fn": Net().apply, "params": params, "ema": params, "scale": scale}
    return jaxcomp.parallel.spread(State.create(tx=tx, **fields))


def train_step(state: State, images: Any, labels: Any) -> tuple[State, jax.Array]:
    """One step of one device."""

    def loss_of(params: Any, images: Any, labels: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return state.scale.scale(loss)

    def add_part(total: Any, part: Any) -> tuple[Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state.params, *part)
        return jax.tree.map(jnp.add, total, grads), loss

    parts = (images.reshape(PARTS, -1, 64), labels.reshape(PARTS, -1))
    zeros = jax.tree.map(jnp.zeros_like, state.params)
    total, losses = jax.lax.scan(add_part, zeros, parts)
    grads = jax.tree.map(lambda x: x / PARTS, state.scale.unscale(total))
    new = state.apply_gradients(grads=grads)
    new = new.replace(ema=optax.incremental_update(new.params, state.ema, 0.1))
    finite = jmp.all_finite(new.params)  # or the step is left out
    new = jmp.select_tree(finite, new, state)
    loss = jax.lax.pmean(state.scale.unscale(losses.mean()), "batch")
    return new.replace(scale=state.scale.adjust(finite)), loss


mapped = jaxcomp.pmap(train_step, "batch", in_axes=(None, 0, 0), out_axes=(None, None))


def step(state: State, images: Any, labels: Any) -> tuple[State, jax.Array]:
    """One step of all devices."""
    shares = (jax.device_count(), -1)
    return mapped(state, images.reshape(*shares, 64), labels.reshape(shares))


def accuracy(state: State) -> float:
    """Of the averaged params."""
    images, labels = TEST
    logits = state.apply_fn({"params": state.ema}, images)
    return float(np.mean(np.argmax(logits, -1) == labels))


if __name__ == "__main__":
    train(start, step, accuracy)
