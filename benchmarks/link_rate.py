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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.namespaces import Network

__all__ = ["measure"]

_CHUNK = 1 << 18
_PORT = 9009


def measure(net: "Network", sender: int, receiver: int, seconds: float = 2.0) -> float:
    """Mbit/s of payload between two hosts of a `namespaces.Network`."""
    base = [sys.executable, str(Path(__file__).resolve())]
    to = [net.address(receiver), str(_PORT)]
    listening = subprocess.Popen(
        net.inside(receiver, [*base, "receive", *to, str(seconds)]),
        stdout=subprocess.PIPE,
        text=True,
    )
    sending = subprocess.Popen(net.inside(sender, [*base, "send", *to]))
    try:
        printed, _ = listening.communicate(timeout=60 + 2 * seconds)
        sending.wait(timeout=10)
    finally:
        for process in (listening, sending):
            if process.poll() is None:
                process.kill()
                process.wait()
    if not printed:
        raise RuntimeError(f"no rate was measured from host {sender} to {receiver}")
    return float(printed)


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
