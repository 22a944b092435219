"""How many images a second does a CPU train on, beside PyTorch on the same cores?

Both train a ResNet for CIFAR on one batch that never changes, in turns: whole steps
with forward pass, backward pass and SGD with momentum. Ours has a worker for each of
two cores, whose gradients are averaged, and PyTorch one process that uses all of them,
with channels last. Both keep the memory that they free; `--pages` chooses otherwise.

    python -m benchmarks.throughput --python path/to/python/with/torch
    python -m benchmarks.throughput --batch 32 --pages fresh
"""

import argparse
import contextlib
import itertools
import statistics
import sys

from benchmarks import peers_ddp, peers_training
from benchmarks.common import PAGES, in_turns, ratio, with_pages
from benchmarks.input_pipeline import side


def main(arguments: list[str] | None = None) -> float | None:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    parser.add_argument("--depth", type=int, default=20, help="of the ResNet, 6n+2")
    parser.add_argument("--batch", type=int, default=128, help="of all workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps in a turn")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--python", default=sys.executable, help="that has torch")
    args = parser.parse_args(arguments)

    keys = {"model": f"resnet{args.depth}", "batch_size": args.batch, "augment": ""}
    keys |= {"workers": args.workers, "mapper": "pmap"}
    ours = side(keys, args.steps, lambda feed: itertools.repeat(next(feed)))
    sides = {"jaxcomp": ours}
    with contextlib.ExitStack() as stack:
        if peers_ddp.has_torch(args.python):
            peer = peers_training.start(args.python, args.depth, args.batch)
            stack.callback(peer.close)
            sides["PyTorch"] = lambda: (peer.ask([args.steps])[0], 0.0)
        else:
            print("no torch: own figures (--python names an interpreter with torch)")
        seconds = in_turns(sides, args.turns)
    for name, times in seconds.items():
        median = statistics.median(total for total, _ in times)
        print(f"{name:10} {args.steps * args.batch / median:8.1f} images/s")
    if "PyTorch" not in seconds:
        return None
    found = ratio([total for total, _ in seconds["PyTorch"]], seconds["jaxcomp"])
    print(f"ratio jaxcomp / PyTorch: {found:.3f} (median of {args.turns} pairs)")
    return found


if __name__ == "__main__":
    with_pages("benchmarks.throughput", main)
