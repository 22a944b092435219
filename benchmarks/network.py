"""What does an exchange, or a training step, take on slow links of real sockets?

Every worker is a process on a host of its own: a network namespace. Links that a token
bucket limits at both ends join the hosts (benchmarks/namespaces.py). Before each series
a plain socket measures the rate that two hosts really get, in both directions, and the
benchmark ends if it is off by more than a tenth. The kernel counts the bytes of the
links beside those of the compiled program. All workers share the cores of this one
machine, so their compression takes longer than on machines of their own. Latency is
that of the kernel, far below a millisecond, or with `--latency` that of a relay in user
space (benchmarks/relay.py), which the round trips of a byte confirm.

    python -m benchmarks.network --out build --rates 100 1000
    python -m benchmarks.network --out build --cases exact power_sgd --rates 50
    python -m benchmarks.network --out build --python path/to/python/with/torch
    python -m benchmarks.network --out build --rates 100 --latency 10
    python -m benchmarks.network --out build --rates 100 --model resnet20 --batch 32
    python -m benchmarks.network --out build --show --compute 100

It needs root, or a user namespace, which it makes itself where that is permitted.
Without `--model`, the gradient of a ResNet-50 is exchanged; with it, the trainer's own
step of that model runs, on one batch that never changes. Results are added to the CSV
file in the folder `--out`, and replace older ones of the same kind, method, rate,
latency and number of workers. `jaxcomp.wire.cost` predicts: it takes rate and latency
from the socket, the bytes from the program, and the local time from the same exchange
or step over links without limit and latency. Those links are not free: what plain
sockets need for these bytes, all hosts at once, is taken off.
"""

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import link_rate, namespaces, network_plot, network_report, relay
from benchmarks.common import PAGES, with_pages, write_csv
from benchmarks.network_report import EXCHANGE, Row, link_of, predicted
from benchmarks.network_sides import CASES, PATIENCE, Case, Side, chosen, started
from jaxcomp import models
from jaxcomp.core.specs import suggest
from jaxcomp.wire import cost, link_bytes

RATES = (50.0, 100.0, 1000.0, 5000.0)
_OFF = 0.1  # of a rate or a latency that was asked for
_LATE = 1e-3  # seconds of latency, beside that tenth
_TRIES = 3  # of what links do, because other load on the machine slows some
_FILLING = 80  # latencies in which a connection finds the rate
_FEW, _WARM_UP = 3, 12  # exchanges; the first ten of some sparsifiers are slower
_QUICK = 1  # seconds; slower ones do nothing that gets faster
_LONGEST = 25  # seconds of a series; one exchange is timed all the same
_SETTLED = 5  # seconds; in shorter exchanges it counts that connections find the rate
_TURNS = 3  # so that other load on the machine meets exchanges with and without limit


def main(arguments: list[str] | None = None) -> list[Row]:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    add = parser.add_argument
    add("--cases", nargs="+", metavar="TEXT", help="titles with these")
    add("--workers", type=int, default=4)
    add("--rates", nargs="+", type=float, default=RATES, metavar="MBIT", help="per s")
    add("--repeats", type=int, default=7)
    add("--scale", type=float, default=1.0, help="of the channels of ResNet-50")
    text = "one way, between any two hosts, by a relay in user space; default: none"
    add("--latency", type=float, default=0.0, metavar="MS", help=text)
    add("--model", help="times training steps of this model in place of exchanges")
    add("--batch", type=int, default=32, help="of a step, of all workers together")
    add("--python", default=sys.executable, help="that has torch, for the peers")
    add("--compute", type=float, default=1000.0, metavar="MS", help="of a step")
    add("--out", type=Path, required=True, help="folder for the CSV and the plot")
    add("--show", action="store_true", help="measure nothing: table and plot of --out")
    args = parser.parse_args(arguments)
    _check(args)
    rows = network_report.read(args.out / "network.csv")
    if not args.show:
        namespaces.enter("benchmarks.network")
        for row in measure(chosen(args), args):
            rows = sorted(network_report.replaced(rows, row), key=_order)
            args.out.mkdir(parents=True, exist_ok=True)
            write_csv(args.out / "network.csv", rows)
            print(network_report.line(row), flush=True)
    if not rows:
        raise SystemExit(f"nothing has been measured in {args.out}")
    network_report.show(rows, args.compute / 1e3)
    if shown := network_report.shown(rows):
        network_plot.draw(args.out / "network.png", shown, args.compute / 1e3)
    return rows


def measure(cases: list[Case], args: argparse.Namespace) -> Iterator[Row]:
    """Run each case at each rate; a row for each."""
    with namespaces.network(args.workers) as net:
        ring = [(host, (host + 1) % net.hosts) for host in range(net.hosts)]
        free = statistics.mean(link_rate.measure(net, ring))
        for case in cases:
            with contextlib.ExitStack() as stack:
                side = started(case, net, args, stack)
                if max(side.run(_FEW, PATIENCE)) < _QUICK:
                    side.run(_WARM_UP, PATIENCE)
                for rate in args.rates:
                    yield _series(case, side, net, rate, free, args)


def _series(
    case: Case,
    side: Side,
    net: namespaces.Network,
    rate: float,
    free: float,
    args: argparse.Namespace,
) -> Row:
    """Measure the links, then exchanges with and without the limit in turns."""
    found = side.collectives
    slow = functools.partial(_slow, net, rate, args.latency / 1e3)
    with slow():
        measured, latency = _checked(net, rate, args.latency / 1e3)
    first, nbytes = _counted(net, side, 1, PATIENCE)
    link = link_of(measured, latency)
    expected = first[0] + nbytes / link.bandwidth + cost.cost(found or [], link).waiting
    limited: list[float] = []
    unlimited: list[float] = []
    sent: list[float] = []
    for repeats in _portions(expected, args.repeats):
        unlimited += side.run(repeats, PATIENCE)
        patience = 60 + 10 * expected * repeats
        with slow():
            if expected < _SETTLED:
                side.run(1, patience)
            seconds, nbytes = _counted(net, side, repeats, patience)
        limited += seconds
        sent += [nbytes] * repeats
    row = Row(
        method=case.title,
        workers=net.hosts,
        elements=side.elements,
        rate=rate,
        measured=measured,
        free=free,
        repeats=len(limited),
        ms=1e3 * statistics.median(limited),
        fastest=1e3 * min(limited),
        slowest=1e3 * max(limited),
        unlimited=1e3 * statistics.median(unlimited),
        predicted=None,
        counted=statistics.mean(sent),
        leaving=None if found is None else link_bytes(found),
        collectives="" if found is None else network_report.written(found),
        timed=f"{args.model}, batch {args.batch}" if args.model else EXCHANGE,
        latency=args.latency,
        latency_measured=1e3 * latency,
    )
    return row if found is None else row._replace(predicted=predicted(row))


@contextlib.contextmanager
def _slow(net: namespaces.Network, rate: float, latency: float) -> Iterator[None]:
    """Links of a rate and a latency."""
    namespaces.limit(net, rate)
    try:
        with relay.delayed(net, latency):
            yield
    finally:
        namespaces.limit(net, None)


def _checked(
    net: namespaces.Network, rate: float, latency: float
) -> tuple[float, float]:
    """Mbit/s and seconds of latency that plain sockets find on links that are slow now.

    Raises:
      SystemExit: that is not what was asked for.
    """
    found = min(link_rate.latency(net) for _ in range(_TRIES))
    if abs(found - latency) > _OFF * latency + _LATE:
        raise SystemExit(
            f"a byte takes {1e3 * found:.3g} ms to another host and should take "
            f"{1e3 * latency:.3g}: nothing is measured on these links"
        )
    seconds = 1.0 + _FILLING * latency
    measured = 0.0
    for _ in range(_TRIES):
        measured = min(link_rate.measure(net, [(0, 1), (1, 0)], seconds))
        if abs(measured / rate - 1) <= _OFF:
            return measured, found
    raise SystemExit(
        f"links of {rate:g} Mbit/s let {measured:.1f} through, which is off by "
        "more than a tenth: nothing is measured on them"
    )


def _counted(
    net: namespaces.Network, side: Side, times: int, patience: float
) -> tuple[list[float], float]:
    """Exchanges: the seconds of each, and the bytes that a host sends in one."""
    before = namespaces.traffic(net)
    seconds = side.run(times, patience)
    after = namespaces.traffic(net)
    sent = statistics.mean(b.sent - a.sent for a, b in zip(before, after, strict=True))
    return seconds, sent / times


def _portions(expected: float, repeats: int) -> list[int]:
    """How many exchanges are timed with and without the limit, in turns."""
    repeats = min(repeats, max(1, int(_LONGEST / expected)))
    return [
        repeats // _TURNS + (i < repeats % _TURNS) for i in range(min(repeats, _TURNS))
    ]


def _order(row: Row) -> tuple[object, ...]:
    """Of the rows of a file: by their settings, methods in the order of CASES."""
    titles = [case.title for case in CASES]
    place = titles.index(row.method) if row.method in titles else len(titles)
    return *network_report.order(network_report.setting(row)), place, row.rate


def _check(args: argparse.Namespace) -> None:
    """Refuse what no worker could do.

    Raises:
      SystemExit: says which option.
    """
    if not 0 <= args.latency < float("inf"):
        raise SystemExit(f"--latency is a number of ms, at least 0: not {args.latency}")
    if args.model:
        name = args.model.partition("(")[0]
        if name not in models.REGISTRY:
            suggested = suggest(name, models.REGISTRY)
            raise SystemExit(f"--model: unknown model {name!r}. {suggested}")
        if args.batch < 1 or args.batch % max(1, args.workers):
            raise SystemExit(
                f"--batch {args.batch} is not shared equally by {args.workers} workers"
            )


if __name__ == "__main__":
    with_pages("benchmarks.network", main)
