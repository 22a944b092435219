"""The rate and the latency that a link really has, by one socket at each end.

    python benchmarks/link_rate.py receive 10.0.0.1 9000 2      # on one host
    python benchmarks/link_rate.py send 10.0.0.1 9000           # on another

The receiver prints megabits of payload per second. The first quarter of its time does
not count: there the connection finds its speed, and what the links saved goes out. With
`echo` and `ask` in place of both, the second one prints half of the seconds that a byte
takes there and back.
"""

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.namespaces import Network

_CHUNK = 1 << 18
_PORT = 9009
_TRIPS = 11  # of a byte, there and back


def measure(
    net: "Network", pairs: Sequence[tuple[int, int]], seconds: float = 2.0
) -> list[float]:
    """Mbit/s of payload from a sender to a receiver, of all pairs at the same time.

    Args:
      net: hosts of a `namespaces.network`.
      pairs: sender and receiver; no host is the receiver of two.
      seconds: to receive for.
    """
    printed, _ = _talk(net, pairs, ["receive", str(seconds)], "send", seconds)
    return printed


def latency(net: "Network", pair: tuple[int, int] = (0, 1)) -> float:
    """Seconds that a byte takes from a host to another one: half of there and back."""
    _, [printed] = _talk(net, [pair], ["echo"], "ask", 30)
    return printed


def _talk(
    net: "Network",
    pairs: Sequence[tuple[int, int]],
    answers: Sequence[str],
    calls: str,
    seconds: float,
) -> tuple[list[float], list[float]]:
    """Run both roles of this file on each pair; what listeners and callers print."""
    base = [sys.executable, str(Path(__file__).resolve())]
    role, *numbers = answers
    listening, calling = [], []
    try:
        for _, host in pairs:
            words = [*base, role, net.address(host), str(_PORT), *numbers]
            listening.append(_started(net.inside(host, words)))
        for caller, host in pairs:
            words = [*base, calls, net.address(host), str(_PORT)]
            calling.append(_started(net.inside(caller, words)))
        ended = [
            [each.communicate(timeout=60 + 2 * seconds)[0] for each in side]
            for side in (listening, calling)
        ]
    finally:
        for process in (*listening, *calling):
            if process.poll() is None:
                process.kill()
                process.wait()
    heard, called = ([float(text) for text in texts if text] for texts in ended)
    if len(heard if numbers else called) < len(pairs):
        raise RuntimeError(f"nothing was measured between some of the hosts {pairs}")
    return heard, called


def _started(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def receive(address: str, port: int, seconds: float) -> float:
    """Take what one sender sends for some time; the rate of it in Mbit/s."""
    buffer = bytearray(_CHUNK)
    with _accepted(address, port) as connection:
        began = time.perf_counter()
        counts_from, counted, start = began + seconds / 4, 0, began
        while (now := time.perf_counter()) < began + seconds:
            if not (size := connection.recv_into(buffer)):
                raise ConnectionError("the sender ended first")
            if now < counts_from:
                start = time.perf_counter()
            else:
                counted += size
        return counted * 8 / 1e6 / (time.perf_counter() - start)


def send(address: str, port: int) -> None:
    """Send until the receiver has had enough."""
    zeros = bytes(_CHUNK)
    with _connected(address, port) as connection:
        try:
            while True:
                connection.sendall(zeros)
        except (BrokenPipeError, ConnectionResetError):
            return


def echo(address: str, port: int) -> None:
    """Send back what comes, until the other side ends."""
    with _accepted(address, port) as connection:
        while got := connection.recv(1):
            connection.sendall(got)


def ask(address: str, port: int) -> float:
    """Half of the seconds that a byte takes there and back, the median of some."""
    seconds = []
    with _connected(address, port) as connection:
        for _ in range(_TRIPS):
            began = time.perf_counter()
            connection.sendall(b"?")
            if not connection.recv(1):
                raise ConnectionError("the other side ended first")
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) / 2


def _accepted(address: str, port: int) -> socket.socket:
    with socket.create_server((address, port)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _connected(address: str, port: int) -> socket.socket:
    deadline = time.perf_counter() + 30
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=30)
            break
        except OSError:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.05)  # the receiver is not there yet
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


if __name__ == "__main__":
    role, where, number, *rest = sys.argv[1:]
    roles = {"receive": receive, "send": send, "echo": echo, "ask": ask}
    found = roles[role](where, int(number), *map(float, rest))
    if found is not None:
        print(found)
