"""Do as many bytes leave a host as the program says?

Every worker is a process on a host of its own, as in benchmarks/network.py, over links
without a limit. The kernel counts bytes and packets at the link of each host. What is
left without the headers of Ethernet, IP and TCP is compared with `wire.link_bytes`.

    python -m benchmarks.leaving --out build --workers 4

Writes leaving.csv. It needs root, or a user namespace, which it makes itself where that
is permitted.
"""

import argparse
import contextlib
import statistics
from pathlib import Path
from typing import NamedTuple

from benchmarks import namespaces
from benchmarks.common import PAGES, with_pages, write_csv
from benchmarks.network_report import written
from benchmarks.network_sides import PATIENCE, Case, started
from jaxcomp.wire import link_bytes

HEADERS = 14 + 20 + 20 + 12  # bytes of Ethernet, IPv4, TCP and its timestamps
_LIGHT = "top_k(keep=0.01)"
CASES = (
    Case("exact", "exact", memory="none"),
    Case("power_sgd(rank=2)", "power_sgd(rank=2)", scope="per_leaf"),
    Case(f"gather({_LIGHT})", compressor=_LIGHT),
    Case("two_phase(sign)", "two_phase", "sign"),
)


class Row(NamedTuple):
    """One method: bytes that leave a host in one exchange, the mean over the hosts."""

    method: str
    workers: int
    elements: int
    collectives: str
    leaving: float  # by the program
    counted: float  # by the kernel, with headers
    packets: float
    payload: float  # counted without headers


def main(arguments: list[str] | None = None) -> list[Row]:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    add = parser.add_argument
    add("--workers", nargs="+", type=int, default=(4,))
    add("--repeats", type=int, default=10, help="exchanges that are counted")
    add("--scale", type=float, default=0.5, help="of the channels of ResNet-50")
    add("--out", type=Path, required=True, help="folder for the CSV")
    args = parser.parse_args(arguments)
    namespaces.enter("benchmarks.leaving")
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for workers in args.workers:
        with namespaces.network(workers) as net:
            for case in CASES:
                rows.append(measure(case, net, args))
                row = rows[-1]
                off = f"{100 * (row.payload / row.leaving - 1):+.2f} %"
                print(
                    f"{row.method:25} {workers} {row.leaving:12,.0f} {off}", flush=True
                )
                write_csv(args.out / "leaving.csv", rows, digits=9)
    return rows


def measure(case: Case, net: namespaces.Network, args: argparse.Namespace) -> Row:
    """Count what leaves the hosts in some exchanges."""
    each = argparse.Namespace(**vars(args), model="", batch=0)
    with contextlib.ExitStack() as stack:
        side = started(case, net, each, stack)
        side.run(2, PATIENCE)  # connections are made by the first
        before = namespaces.traffic(net)
        side.run(args.repeats, PATIENCE)
        after = namespaces.traffic(net)
    pairs = list(zip(before, after, strict=True))
    counted = statistics.mean(b.sent - a.sent for a, b in pairs) / args.repeats
    packets = statistics.mean(b.packets - a.packets for a, b in pairs) / args.repeats
    found = side.collectives or []
    return Row(
        method=case.title,
        workers=net.hosts,
        elements=side.elements,
        collectives=written(found),
        leaving=link_bytes(found),
        counted=counted,
        packets=packets,
        payload=counted - HEADERS * packets,
    )


if __name__ == "__main__":
    with_pages("benchmarks.leaving", main)
