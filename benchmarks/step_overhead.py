"""What does the exchange cost when it does nothing?

Compares steps/s of jaxcomp's training step with `exact` to a hand-written pmap + optax
step of the same model on the same data, in turns, so that a busy machine slows both.
The hand-written step does what people write: gradient, pmean, optax, metrics; it has no
guard against NaN, no report of norms and errors. Prints the ratio (1.0: no cost).

    python -m benchmarks.step_overhead --model=resnet20 --batch=128
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from configs import default
from jaxcomp import parallel
from jaxcomp.training.plan import RunPlan, build, gather_workers
from jaxcomp.training.programs import make_programs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="of all workers")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in a turn")
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args(arguments)

    config = _config(args)
    setup = build(config, gather_workers(config))
    batch = _batch(setup, args)
    turns = {"jaxcomp": ours(setup, batch), "hand-written": theirs(setup, batch)}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for run in turns.values():
        run(2)  # warm up
    for _ in range(args.turns):
        for name, run in turns.items():
            seconds[name].append(run(args.steps) / args.steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(
            f"{name:13} {1 / median:8.2f} steps/s (best {1 / min(seconds[name]):.2f})"
        )
    pairs = zip(seconds["hand-written"], seconds["jaxcomp"], strict=True)
    ratio = statistics.median(hand / own for hand, own in pairs)
    print(f"ratio jaxcomp / hand-written: {ratio:.3f} (median of {args.turns} pairs)")


def ours(setup: RunPlan, batch: tuple[Any, Any]) -> Callable[[int], float]:
    """The trainer's step, compiled as the trainer does; returns a timed runner."""
    workers = setup.workers
    state = parallel.spread(setup.fresh(), workers)
    compiled = make_programs(setup, say=print)(0, state)[0].step
    holder = [state]

    def run(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            placed = parallel.place(batch, workers, 0)
            holder[0], metrics = compiled(holder[0], *placed)
            jax.block_until_ready((holder[0], metrics))
        return time.perf_counter() - began

    return run


def theirs(setup: RunPlan, batch: tuple[Any, Any]) -> Callable[[int], float]:
    """A step with pmap and optax, whose state is replicated along a leading axis."""
    loss_of, size = setup.task.loss, setup.workers.size
    tx = optax.chain(
        optax.add_decayed_weights(5e-4),
        optax.sgd(setup.segments.rate, momentum=0.9, nesterov=True),
    )
    fresh = setup.fresh()
    stats = fresh.stats.value

    def step(
        params: Any, stats: Any, opt_state: Any, key: Any, images: Any, labels: Any
    ) -> Any:
        key, use = jax.random.split(key)
        differentiated = jax.value_and_grad(loss_of, has_aux=True)
        (loss, new), grads = differentiated(params, stats, {}, (images, labels), use)
        grads = jax.lax.pmean(grads, "batch")
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        metrics = jax.lax.pmean({"loss": loss, "accuracy": new.accuracy}, "batch")
        return params, new.stats, opt_state, key, metrics

    mapped = jax.pmap(step, axis_name="batch", donate_argnums=(0, 1, 2))

    def replicate(tree: Any) -> Any:
        return jax.tree.map(lambda x: np.stack([np.asarray(x)] * size), tree)

    keys = jax.random.split(jax.random.key(0), size)
    holder = [
        replicate(fresh.params),
        replicate(stats),
        replicate(tx.init(fresh.params)),
        keys,
    ]

    def run(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            *holder[:], metrics = mapped(*holder, *batch)
            jax.block_until_ready((holder, metrics))
        return time.perf_counter() - began

    return run


def _config(args: argparse.Namespace) -> ConfigDict:
    config = default.get_config()
    config.dataset = f"digits(size={args.size})"
    config.model = args.model
    config.workers = args.workers
    config.batch_size = args.batch
    config.exchange = "exact"
    config.memory = "none"
    return config


def _batch(setup: RunPlan, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.arange(args.batch).reshape(args.workers, -1)
    images, labels = setup.task.train
    return images[chosen], labels[chosen]


if __name__ == "__main__":
    main()
