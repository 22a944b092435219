"""Flax nnx under jit, in the manner of its data parallel example."""

from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.common import TEST, train

PARTS = 2  # of a batch, whose gradients are accumulated
TRAINED = nnx.All(nnx.Param, nnx.Not(nnx.PathContains("embed")))
mesh = Mesh(np.array(jax.devices()), "data")


class Net(nnx.Module):
    """A perceptron that computes in float16."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Linear(64, 64, dtype=jnp.float16, rngs=rngs)
        self.hidden = nnx.Linear(64, 128, dtype=jnp.float16, rngs=rngs)
        self.out = nnx.Linear(128, 10, dtype=jnp.float16, rngs=rngs)

    def __call__(self, x: Any) -> jax.Array:
        x = self.hidden(nnx.relu(self.embed(x)))
        return self.out(nnx.relu(x)).astype(jnp.float32)


class Trainer(nnx.Module):
    """What a step changes."""

    def __init__(self):
        self.model = Net(nnx.Rngs(0))
        params = nnx.state(self.model, TRAINED)
        tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
        tx = optax.apply_if_finite(tx, max_consecutive_errors=20)
        self.optimizer = nnx.Optimizer(self.model, tx, wrt=TRAINED)
        self.ema: nnx.Variable[Any] = nnx.Variable(params)
        self.scale = nnx.Variable(jmp.DynamicLossScale(jnp.float32(2**10)))


def loss_and_grads(model: Net, batch: Any, scale: Any) -> tuple[jax.Array, Any]:
    """The mean over the parts of a batch."""

    def loss_of(model: Net, images: Any, labels: Any) -> jax.Array:
        logits = model(images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return scale.scale(loss)

    of_part = nnx.value_and_grad(loss_of, argnums=nnx.DiffState(0, TRAINED))
    # Every part has images of every device.
    images, labels = batch
    found = [of_part(model, images[i::PARTS], labels[i::PARTS]) for i in range(PARTS)]
    mean = jax.tree.map(lambda *x: sum(x) / PARTS, *found)
    return scale.unscale(mean)


@nnx.jit
def train_step(trainer: Trainer, batch: Any) -> jax.Array:
    """One step, of global arrays."""
    scale = trainer.scale.get_value()
    loss, grads = loss_and_grads(trainer.model, batch, scale)
    trainer.optimizer.update(trainer.model, grads)
    params = nnx.state(trainer.model, TRAINED)
    ema = optax.incremental_update(params, trainer.ema.get_value(), 0.1)
    trainer.ema.set_value(ema)
    trainer.scale.set_value(scale.adjust(jmp.all_finite(grads)))
    return loss


def start() -> Trainer:
    """The state before the first step."""
    return Trainer()


def step(trainer: Trainer, images: Any, labels: Any) -> tuple[Trainer, jax.Array]:
    """One step, of a batch from the host."""
    batch = jax.device_put((images, labels), NamedSharding(mesh, P("data")))
    return trainer, train_step(trainer, batch)


def accuracy(trainer: Trainer) -> float:
    """Of the averaged params."""
    images, labels = TEST
    graph, _, others = nnx.split(trainer.model, TRAINED, ...)
    logits = nnx.merge(graph, trainer.ema.get_value(), others)(images)
    return float(np.mean(np.argmax(logits, -1) == labels))


if __name__ == "__main__":
    train(start, step, accuracy)
