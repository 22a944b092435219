"""How many latencies does a collective of a small message take over Gloo?

Hosts behind the relay (benchmarks/relay.py) run each collective on 48 numbers, so that
bytes take no time. What it takes longer than without latency is counted in latencies,
and stands beside what `jaxcomp.wire.cost` says of links of Gloo.

    python -m benchmarks.rounds --workers 2 3 4

It needs what benchmarks/network.py needs.
"""

import argparse
import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import crew, link_rate, namespaces, network_report, relay
from jaxcomp import parallel, wire
from jaxcomp.wire import Collective, cost

_PORT, _PATIENCE = 9030, 300
_NUMBERS = 48  # of each worker; a multiple of 2, 3 and 4
_ALL: dict[str, Any] = {"groups": ()}  # each is between all workers


def _ring(axis: str) -> list[tuple[int, int]]:
    size = jax.lax.axis_size(axis)
    return [(place, (place + 1) % size) for place in range(size)]


COLLECTIVES: dict[str, Callable[[Any, str], Any]] = {
    "all-reduce": jax.lax.psum,
    "all-reduce of three": lambda x, axis: jax.lax.psum((x, 2 * x[:5], x[:7]), axis),
    "all-gather": jax.lax.all_gather,
    "reduce-scatter": lambda x, axis: jax.lax.psum_scatter(x, axis, tiled=True),
    "all-to-all": lambda x, axis: jax.lax.all_to_all(x, axis, 0, 0, tiled=True),
    "permute": lambda x, axis: jax.lax.ppermute(x, axis, _ring(axis)),
}


def main(arguments: list[str] | None = None) -> dict[tuple[str, int], float]:
    """Print a row for each collective; latencies by its name and number of hosts."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    add("--workers", nargs="+", type=int, default=[2, 3, 4])
    add("--latency", type=float, default=20.0, metavar="MS", help="one way")
    add("--repeats", type=int, default=7)
    args = parser.parse_args(arguments)
    namespaces.enter("benchmarks.rounds")
    result = {}
    for workers in args.workers:
        for name, found, model in measure(workers, args.latency / 1e3, args.repeats):
            result[name, workers] = found
            told = f"{found:6.1f} latencies, by the model {model:g}"
            print(f"{name:20} {workers:3} hosts {told}", flush=True)
    return result


def measure(
    workers: int, latency: float, repeats: int
) -> Iterator[tuple[str, float, float]]:
    """The name of each collective, and latencies as measured and by the model."""
    with namespaces.network(workers) as net, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.rounds", "worker"]
        commands = [net.inside(rank, command) for rank in range(workers)]
        hosts = crew.start("small messages", commands)
        stack.callback(hosts.close)
        task = {"workers": workers, "coordinator": f"{net.address(0)}:{_PORT}"}
        facts = hosts.ask([task | {"rank": r} for r in range(workers)], _PATIENCE)[0]

        def seconds(name: str) -> float:
            asked = {"name": name, "repeats": repeats}
            answers = hosts.ask([asked] * workers, _PATIENCE)
            # The fastest: what else the machine does adds to the others.
            return min(statistics.mean(each) for each in zip(*answers, strict=True))

        near = {name: seconds(name) for name in COLLECTIVES}
        with relay.delayed(net, latency):
            found = link_rate.latency(net)
            link = network_report.link_of(1e6, latency=1.0)
            for name in COLLECTIVES:
                collectives = [Collective(**each | _ALL) for each in facts[name]]
                model = cost.cost(collectives, link).waiting
                yield name, (seconds(name) - near[name]) / found, model


def serve() -> None:
    """One worker: compile all collectives, then time those that are asked for."""
    asked, say = crew.member()
    task = next(asked)
    places = {"processes": task["workers"], "process": task["rank"]}
    workers = parallel.setup(
        task["workers"], coordinator=task["coordinator"], platform="cpu", **places
    )
    numbers = parallel.place(np.ones((1, _NUMBERS), np.float32), workers, 0)
    programs = {}
    for name, collective in COLLECTIVES.items():
        step = functools.partial(_applied, collective, axis=workers.axis)
        mapped = parallel.map_step(step, workers, in_axes=(0,), out_axes=0)
        programs[name] = mapped.lower(numbers).compile()
    say({n: [c._asdict() for c in wire.collectives(programs[n])] for n in programs})
    for task in asked:
        times = []
        for _ in range(task["repeats"]):
            began = time.perf_counter()
            jax.block_until_ready(programs[task["name"]](numbers))
            times.append(time.perf_counter() - began)
        say(times)


def _applied(collective: Callable[[Any, str], Any], x: Any, axis: str) -> Any:
    return collective(x, axis)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        serve()
    else:
        main()
