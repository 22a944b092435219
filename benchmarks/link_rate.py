"""The rate that a link really has: one socket that sends, and one that receives.

    python benchmarks/link_rate.py receive 10.0.0.1 9000 2      # on one host
    python benchmarks/link_rate.py send 10.0.0.1 9000           # on another

The receiver prints megabits of payload per second. The first quarter of its time does
not count: there the connection finds its speed, and what the links saved goes out.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.namespaces import Network

__all__ = ["measure"]

_CHUNK = 1 << 18
_PORT = 9009


def measure(
    net: "Network", pairs: Sequence[tuple[int, int]], seconds: float = 2.0
) -> list[float]:
    """Mbit/s of payload from a sender to a receiver, of all pairs at the same time.

    Args:
      net: hosts of a `namespaces.network`.
      pairs: sender and receiver; no host is the receiver of two.
      seconds: to receive for.
    """
    base = [sys.executable, str(Path(__file__).resolve())]
    listening, sending = [], []
    try:
        for _, receiver in pairs:
            to = [net.address(receiver), str(_PORT)]
            command = net.inside(receiver, [*base, "receive", *to, str(seconds)])
            listening += [subprocess.Popen(command, stdout=subprocess.PIPE, text=True)]
        for sender, receiver in pairs:
            to = [net.address(receiver), str(_PORT)]
            sending += [subprocess.Popen(net.inside(sender, [*base, "send", *to]))]
        printed = [each.communicate(timeout=60 + 2 * seconds)[0] for each in listening]
        for each in sending:
            each.wait(timeout=10)
    finally:
        for process in (*listening, *sending):
            if process.poll() is None:
                process.kill()
                process.wait()
    for pair, text in zip(pairs, printed, strict=True):
        if not text:
            raise RuntimeError("no rate was measured from host {} to {}".format(*pair))
    return [float(text) for text in printed]


def receive(address: str, port: int, seconds: float) -> float:
    """Take what one sender sends for some time; the rate of it in Mbit/s."""
    buffer = bytearray(_CHUNK)
    with socket.create_server((address, port)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
        with connection:
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
    deadline = time.perf_counter() + 30
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=30)
            break
        except OSError:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.05)  # the receiver is not there yet
    zeros = bytes(_CHUNK)
    with connection:
        try:
            while True:
                connection.sendall(zeros)
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    role, where, number, *rest = sys.argv[1:]
    if role == "receive":
        print(receive(where, int(number), float(*rest)))
    else:
        send(where, int(number))
