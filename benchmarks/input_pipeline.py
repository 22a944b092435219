"""What do taking and augmenting batches cost a training step?

Compares images/s of the trainer's step on augmented batches, each taken from the data
and put on the devices, with the same step on one batch that never changes and is only
normalised. In turns, so that a busy machine slows both. Prints the ratio: 1.0 means
that they cost nothing.

    python -m benchmarks.input_pipeline --model=resnet20 --batch=128
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

import jax
import numpy as np

from benchmarks.common import PAGES, in_turns, ratio, with_pages
from configs import default
from jaxcomp import parallel
from jaxcomp.data import Dataset
from jaxcomp.training.feed import loaded, train_feed
from jaxcomp.training.plan import RunPlan, build, gather_workers
from jaxcomp.training.programs import make_programs


def main(arguments: list[str] | None = None) -> float:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--augment", default="crop(pad=4) | flip")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mapper", default="vmap")
    parser.add_argument("--batch", type=int, default=128, help="of all workers")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in a turn")
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args(arguments)

    keys = {"model": args.model, "workers": args.workers, "mapper": args.mapper}
    keys |= {"batch_size": args.batch, "augment": args.augment}
    constant = keys | {"augment": ""}
    sides = {
        "augmented": side(keys, args.steps, lambda feed: feed),
        "constant": side(constant, args.steps, lambda feed: repeat(next(feed))),
    }
    seconds = in_turns(sides, args.turns)
    for name, times in seconds.items():
        median = statistics.median(total for total, _ in times)
        print(f"{name:10} {args.steps * args.batch / median:8.1f} images/s")
    waited = statistics.median(data / total for total, data in seconds["augmented"])
    print(f"of an augmented step, {100 * waited:.1f} % is waiting for its batch")
    found = ratio([total for total, _ in seconds["constant"]], seconds["augmented"])
    print(f"ratio augmented / constant: {found:.3f} (median of {args.turns} pairs)")
    return found


def pixels(examples: int = 10_000) -> Dataset:
    """Random images of the size of CIFAR-10's."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, examples).astype(np.int32)
    colours = (0.5, 0.5, 0.5)
    return Dataset("pixels", images, labels, images, labels, 10, colours, colours)


def side(
    keys: Mapping[str, Any],
    steps: int,
    fed: Callable[[Iterator[Any]], Iterator[Any]],
) -> Callable[[], tuple[float, float]]:
    """A side for `in_turns`: steps of the trainer on random images, no exchange.

    Args:
      keys: of the config.
      steps: of one run.
      fed: makes the batches of a run out of those of the data.

    Returns:
      A runner of some steps: seconds in all, and those in which it waited for data.
    """
    config = default.get_config()
    config.update(dataset="benchmarks.input_pipeline:pixels", exchange="exact")
    config.update(memory="none", mapper="vmap")
    config.update(keys)
    setup = build(config, gather_workers(config))
    state = parallel.spread(setup.fresh(), setup.workers)
    compiled = make_programs(setup, say=print)(0, state)[0].step
    feed, holder = fed(_feed(setup)), [state]

    def run() -> tuple[float, float]:
        waited, began = 0.0, time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(feed)
            waited += time.perf_counter() - asked
            holder[0], metrics = compiled(holder[0], *batch)
            jax.block_until_ready((holder[0], metrics))
        return time.perf_counter() - began, waited

    return run


def _feed(setup: RunPlan) -> Iterator[Any]:
    make = functools.partial(train_feed, local=setup.workers.local, start=0)
    return iter(loaded(make, setup.task, setup.workers))


if __name__ == "__main__":
    with_pages("benchmarks.input_pipeline", main)
