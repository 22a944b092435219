"""Run a command on hosts with slow links, as the processes of one run.

    python -m benchmarks.on_hosts --hosts 4 --rate 100 -- python train.py \
        --config=configs/cifar10_dgc.py --workdir=runs/slow

Every host is a network namespace (benchmarks/namespaces.py) and runs the command once,
with JAXCOMP_COORDINATOR, JAXCOMP_PROCESSES and JAXCOMP_PROCESS set. The output of
process 0 is shown; what the others write is shown if one of them fails. The first
failure ends all, and its exit code is that of the whole.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from benchmarks import link_rate, namespaces, relay

_PORT = 9020
_PATIENCE = 20  # seconds for a process to end when it is asked to


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, metavar="MBIT", help="default: no limit")
    text = "one way, by a relay in user space; default: none"
    parser.add_argument("--latency", type=float, default=0.0, metavar="MS", help=text)
    parser.add_argument("command", nargs="+", help="after --")
    args = parser.parse_args(arguments)
    namespaces.enter("benchmarks.on_hosts")
    delay = args.latency / 1e3
    with namespaces.network(args.hosts) as net, relay.delayed(net, delay):
        namespaces.limit(net, args.rate)
        [measured] = link_rate.measure(net, [(0, 1)])
        found = f"{measured:,.0f} Mbit/s and {1e3 * link_rate.latency(net):.3g} ms"
        print(f"{args.hosts} hosts, {found} measured", flush=True)
        code = run(net, args.command)
        for host, each in enumerate(namespaces.traffic(net)):
            print(f"host {host} sent {each.sent:,} and received {each.received:,} B")
    return code


def run(net: namespaces.Network, command: Sequence[str]) -> int:
    """Run a command on each host until all have ended, or one has failed."""
    shared = {
        "JAXCOMP_COORDINATOR": f"{net.address(0)}:{_PORT}",
        "JAXCOMP_PROCESSES": str(net.hosts),
    }
    logs = [tempfile.TemporaryFile("w+") for _ in range(1, net.hosts)]  # noqa: SIM115
    crew = []
    try:
        for host in range(net.hosts):
            log = logs[host - 1] if host else None
            environment = os.environ | shared | {"JAXCOMP_PROCESS": str(host)}
            words = net.inside(host, command)
            process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
            crew.append(process)
        return _first_failure(crew, logs)
    finally:
        for process in crew:
            process.terminate()
        for process in crew:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in logs:
            log.close()


def _first_failure(crew: list[subprocess.Popen[bytes]], logs: Sequence[IO[str]]) -> int:
    """Wait for all processes; the exit code of the first that fails, or 0."""
    while True:
        codes = [process.poll() for process in crew]
        for host, code in enumerate(codes):
            if code:
                if host:
                    _show(logs[host - 1])
                print(f"process {host} ended with code {code}", file=sys.stderr)
                return code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.2)


def _show(log: IO[str], most: int = 4000) -> None:
    log.seek(0)
    print(log.read()[-most:], file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
