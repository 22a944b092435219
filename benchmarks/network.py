"""What does an exchange take on slow links: real processes, sockets and limited rates?

Every worker is a process on a host of its own: a network namespace. Links that a token
bucket limits at both ends join the hosts (benchmarks/namespaces.py). Before each series
a plain socket measures the rate that two hosts really get, in both directions, and the
benchmark ends if it is off by more than a tenth. The kernel counts the bytes of the
links beside those of the compiled program. All workers share the cores of this one
machine, so their compression takes longer than on machines of their own. Latency is
that of the kernel, far below a millisecond.

    python -m benchmarks.network --out build --rates 100 1000
    python -m benchmarks.network --out build --cases exact power_sgd --rates 50
    python -m benchmarks.network --out build --python path/to/python/with/torch
    python -m benchmarks.network --out build --show --compute 100

It needs root, or a user namespace, which it makes itself where that is permitted.
Results are added to the CSV file in the folder `--out`, and replace older ones of the
same method, rate and number of workers. The prediction of `jaxcomp.cost` takes the rate
from the socket, the bytes from the program, and the local time from the same exchange
over links without a limit. Those links are not free: what plain sockets need for these
bytes, all hosts at once, is taken off.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import (
    crew,
    link_rate,
    namespaces,
    network_plot,
    network_report,
    peers_ddp,
    trees,
)
from benchmarks.common import PAGES, with_pages, write_csv
from benchmarks.network_report import Row, predicted
from jaxcomp.wire import Collective, link_bytes

__all__ = ["CASES", "Case", "main"]


class Case(NamedTuple):
    """An exchange of ours, or a hook of PyTorch's DDP, and how it is called here."""

    title: str
    exchange: str = "gather"
    compressor: str = "none"
    memory: str = "error_feedback"
    scope: str = "whole_tree"
    hook: str = ""  # a name in `peers_ddp.HOOKS`


_LIGHT = "top_k(keep=0.001)"
CASES = (
    Case("exact", "exact", memory="none"),
    Case("power_sgd(rank=2)", "power_sgd(rank=2)", scope="per_leaf"),
    Case(f"{_LIGHT}, whole_tree", compressor=_LIGHT),
    Case(f"{_LIGHT}, per_leaf", compressor=_LIGHT, scope="per_leaf"),
    Case(f"{_LIGHT} | qsgd(levels=127)", compressor=f"{_LIGHT} | qsgd(levels=127)"),
    Case(f"dgc: {_LIGHT}", compressor=_LIGHT, memory="dgc"),
    Case("sign", compressor="sign"),
    Case(
        "two_phase(qsgd(levels=7, norm='max'))",
        "two_phase",
        "qsgd(levels=7, norm='max')",
        memory="none",
    ),
    Case("DDP: no hook", hook="all-reduce"),
    Case("DDP: fp16", hook="fp16"),
    Case("DDP: PowerSGD(rank=2)", hook="PowerSGD(rank=2)"),
    Case("DDP: PowerSGD(rank=2), batched", hook="PowerSGD(rank=2), batched"),
)
RATES = (50.0, 100.0, 1000.0, 5000.0)
_PORT = 9010
_OFF = 0.1  # of a rate that was asked for
_PATIENCE = 600  # seconds to compile
_FEW, _WARM_UP = 3, 12  # exchanges; the first ten of some sparsifiers are slower
_QUICK = 1  # seconds; slower ones do nothing that gets faster
_LONGEST = 25  # seconds of a series; one exchange is timed all the same
_SETTLED = 5  # seconds; in shorter exchanges it counts that connections find the rate
_TURNS = 3  # so that other load on the machine meets exchanges with and without limit


class Side(NamedTuple):
    """One method that runs on all hosts."""

    run: Callable[[int, float], list[float]]  # (times, seconds to wait) -> seconds each
    collectives: list[Collective] | None  # None of a peer


def main(arguments: list[str] | None = None) -> list[Row]:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    add = parser.add_argument
    add("--cases", nargs="+", metavar="TEXT", help="titles with these")
    add("--workers", type=int, default=4)
    add("--rates", nargs="+", type=float, default=RATES, metavar="MBIT", help="per s")
    add("--repeats", type=int, default=7)
    add("--scale", type=float, default=1.0, help="of the channels")
    add("--python", default=sys.executable, help="that has torch, for the peers")
    add("--compute", type=float, default=1000.0, metavar="MS", help="of a step")
    add("--out", type=Path, required=True, help="folder for the CSV and the plot")
    add("--show", action="store_true", help="measure nothing: table and plot of --out")
    args = parser.parse_args(arguments)
    rows = network_report.read(args.out / "network.csv")
    if not args.show:
        namespaces.enter("benchmarks.network")
        for row in measure(_chosen(args), args):
            rows = sorted(network_report.replaced(rows, row), key=_order)
            args.out.mkdir(parents=True, exist_ok=True)
            write_csv(args.out / "network.csv", rows)
            print(network_report.line(row), flush=True)
    if not rows:
        raise SystemExit(f"nothing has been measured in {args.out}")
    network_report.show(rows, args.compute / 1e3)
    network_plot.draw(args.out / "network.png", rows, args.compute / 1e3)
    return rows


def measure(cases: list[Case], args: argparse.Namespace) -> Iterator[Row]:
    """Run each case at each rate; a row for each."""
    with namespaces.network(args.workers) as net:
        ring = [(host, (host + 1) % net.hosts) for host in range(net.hosts)]
        free = statistics.mean(link_rate.measure(net, ring))
        for case in cases:
            with contextlib.ExitStack() as stack:
                side = (_theirs if case.hook else _ours)(case, net, args, stack)
                if max(side.run(_FEW, _PATIENCE)) < _QUICK:
                    side.run(_WARM_UP, _PATIENCE)
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
    """Measure the rate, then exchanges with and without the limit in turns."""
    namespaces.limit(net, rate)
    measured = min(link_rate.measure(net, [(0, 1), (1, 0)], 1.0))
    if abs(measured / rate - 1) > _OFF:
        raise SystemExit(
            f"links of {rate:g} Mbit/s let {measured:.1f} through, which is off by "
            "more than a tenth: nothing is measured on them"
        )
    namespaces.limit(net, None)
    first, nbytes = _counted(net, side, 1, _PATIENCE)
    expected = first[0] + nbytes / network_report.link_of(measured).bandwidth
    limited: list[float] = []
    unlimited: list[float] = []
    sent: list[float] = []
    for repeats in _portions(expected, args.repeats):
        namespaces.limit(net, None)
        unlimited += side.run(repeats, _PATIENCE)
        namespaces.limit(net, rate)
        patience = 60 + 10 * expected * repeats
        if expected < _SETTLED:
            side.run(1, patience)
        seconds, nbytes = _counted(net, side, repeats, patience)
        limited += seconds
        sent += [nbytes] * repeats
    namespaces.limit(net, None)
    found = side.collectives
    row = Row(
        method=case.title,
        workers=net.hosts,
        elements=_elements(args),
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
    )
    return row if found is None else row._replace(predicted=predicted(row))


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


def _ours(
    case: Case,
    net: namespaces.Network,
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> Side:
    command = [sys.executable, "-m", "benchmarks.network_worker"]
    ranks = range(net.hosts)
    commands = [net.inside(rank, command) for rank in ranks]
    workers = crew.start(case.title, commands)
    stack.callback(workers.close)
    specs = {k: v for k, v in case._asdict().items() if k not in ("title", "hook")}
    task = {"case": specs, "scale": args.scale, "workers": net.hosts}
    task |= {"coordinator": f"{net.address(0)}:{_PORT}"}
    facts = workers.ask([task | {"rank": rank} for rank in ranks], _PATIENCE)

    def run(times: int, patience: float) -> list[float]:
        # A worker that is done begins the next one, so the mean of the workers is how
        # often one is done. The slowest of each would count what others do meanwhile.
        answers = workers.ask([times] * net.hosts, patience)
        return [statistics.mean(each) for each in zip(*answers, strict=True)]

    found = [Collective(**collective) for collective in facts[0]["collectives"]]
    return Side(run, found)


def _theirs(
    case: Case,
    net: namespaces.Network,
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> Side:
    # PyTorch has the outputs first; the sides of the matrices stay what they are.
    shapes = [shape[::-1] for shape in trees.resnet50(args.scale).values()]
    places = peers_ddp.Places(net.inside, net.address(0), "eth0")
    peer = peers_ddp.start(case.hook, shapes, net.hosts, args.python, places)
    stack.callback(peer.close)

    def run(times: int, patience: float) -> list[float]:
        del patience  # the peer has a limit of its own
        return [whole - bare for whole, bare in (peer.run() for _ in range(times))]

    return Side(run, None)


def _order(row: Row) -> tuple[int, int, int, float]:
    """Of the rows of a file: the largest size first, methods in the order of CASES."""
    titles = [case.title for case in CASES]
    place = titles.index(row.method) if row.method in titles else len(titles)
    return -row.elements, row.workers, place, row.rate


def _elements(args: argparse.Namespace) -> int:
    return trees.elements(trees.resnet50(args.scale))


def _chosen(args: argparse.Namespace) -> list[Case]:
    """The cases that were asked for; peers only where their interpreter has torch."""
    for text in args.cases or ():
        if not any(text in case.title for case in CASES):
            titles = "\n  ".join(case.title for case in CASES)
            raise SystemExit(f"no case has {text!r} in its title:\n  {titles}")
    texts = args.cases or [""]
    chosen = [c for c in CASES if any(text in c.title for text in texts)]
    if any(c.hook for c in chosen) and not peers_ddp.has_torch(args.python):
        print("no peers: own figures alone (--python names an interpreter with torch)")
        chosen = [c for c in chosen if not c.hook]
    return chosen


if __name__ == "__main__":
    with_pages("benchmarks.network", main)
