"""Save real gradients of ResNet-20 on CIFAR-10 for `benchmarks.error`.

Trains with batches of 128 on one worker, in the trainer's own order and augmentation,
and keeps the mini-batch gradient early (step 10), in the middle (one epoch) and late
(the last step). Minutes on two cores; needs prepared data (`jaxcomp data prepare`).

    python -m benchmarks.gradients --out build/gradients.npz
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from configs import cifar10
from jaxcomp.training.feed import train_feed
from jaxcomp.training.plan import RunPlan, build, gather_workers


class Gradients(NamedTuple):
    """Gradients of one run, each with all tensors in one vector."""

    vectors: dict[str, np.ndarray]  # moment -> [n] float32
    steps: dict[str, int]
    names: list[str]  # of the tensors, in the order of the vector
    shapes: list[tuple[int, ...]]

    def tensors(self, moment: str) -> list[np.ndarray]:
        """The gradient of a moment, tensor by tensor."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = np.split(self.vectors[moment], ends[:-1])
        return [p.reshape(s) for p, s in zip(parts, self.shapes, strict=True)]


def save(file: Path, gradients: Gradients) -> None:
    """Write plain arrays: names and shapes as text, nothing pickled."""
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "names": np.array(gradients.names),
        "shapes": np.array([" ".join(map(str, s)) for s in gradients.shapes]),
        "moments": np.array(list(gradients.vectors)),
        "steps": np.array(list(gradients.steps.values())),
    }
    for moment, vector in gradients.vectors.items():
        arrays[f"gradient_{moment}"] = vector
    with open(file, "wb") as target:  # a name would be given the ending .npz
        np.savez_compressed(target, **arrays)


def load(file: Path) -> Gradients:
    """Read what `save` wrote."""
    with np.load(file, allow_pickle=False) as stored:
        moments = [str(name) for name in stored["moments"]]
        steps = [int(step) for step in stored["steps"]]
        shapes = [tuple(map(int, str(text).split())) for text in stored["shapes"]]
        return Gradients(
            vectors={name: stored[f"gradient_{name}"] for name in moments},
            steps=dict(zip(moments, steps, strict=True)),
            names=[str(name) for name in stored["names"]],
            shapes=shapes,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, default="build/gradients.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()

    config = cifar10.get_config()
    config.workers = 1
    config.batch_size = args.batch
    config.train_for = f"{args.epochs} epochs"
    config.learning_rate = 0.1
    config.schedule = (
        f"piecewise_linear(epochs=[0, 1, {args.epochs}], values=[0.1, 1, 0])"
    )
    config.exchange, config.memory = "exact", "none"
    setup = build(config, gather_workers(config))
    per_epoch = setup.total_steps // args.epochs
    wanted = {10: "early", per_epoch: "middle", setup.total_steps: "late"}
    for gradients in snapshots(setup, config, wanted):
        save(args.out, gradients)  # after each, so that a stopped run leaves the first
    print(f"wrote {args.out}")


def snapshots(setup: RunPlan, config: Any, wanted: dict[int, str]) -> Any:
    """Train to the last step that is wanted; yields what there is after each.

    Args:
      setup: of the run, with one worker.
      config: it was built from.
      wanted: number of the step, from 1 -> name of the moment.
    """
    fresh = setup.fresh()
    tx = optax.chain(
        optax.add_decayed_weights(config.weight_decay),
        optax.sgd(setup.segments.rate, momentum=0.9, nesterov=True),
    )
    base_key = jax.random.key(config.seed)

    @jax.jit
    def step(carry: Any, images: Any, labels: Any, number: Any) -> Any:
        params, stats, opt_state = carry
        key = jax.random.fold_in(base_key, number)
        differentiated = jax.value_and_grad(setup.task.loss, has_aux=True)
        (loss, new), grads = differentiated(params, stats, {}, (images, labels), key)
        updates, opt_state = tx.update(grads, opt_state, params)
        carry = (optax.apply_updates(params, updates), new.stats, opt_state)
        return carry, loss, grads

    found = Gradients(
        vectors={},
        steps={},
        names=setup.leaf_names,
        shapes=[leaf.shape for leaf in jax.tree.leaves(fresh.params)],
    )
    feed = train_feed(setup.task, local=slice(0, 1), start=0)
    carry = (fresh.params, fresh.stats.value, tx.init(fresh.params))
    began, last = time.perf_counter(), max(wanted)
    for number in range(1, last + 1):
        images, labels = next(feed)
        carry, loss, grads = step(carry, images[0], labels[0], number)
        if number % 100 == 0 or number in wanted:
            seconds = time.perf_counter() - began
            print(
                f"step {number}/{last}  loss {float(loss):.3f}  {seconds:.0f} s",
                flush=True,
            )
        if number in wanted:
            leaves = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(grads)]
            found.vectors[wanted[number]] = np.concatenate(leaves)
            found.steps[wanted[number]] = number
            yield found


if __name__ == "__main__":
    main()
