"""Links with latency: a process that passes frames between hosts, some time later.

Kernels without netem cannot delay packets, so a switch in user space does. The hosts'
ports are taken out of the bridge of `namespaces.network`, and this process reads what
arrives at them, keeps it for some milliseconds, and writes it to the port of the host
that it is for. The limits of rates stay at both ends of every link.

    python -m benchmarks.relay 0.010 jxn7v0 jxn7v1      # what `delayed` starts

It is not a model of a long line: every frame takes the same time, none is lost or
overtakes another one, and passing frames takes time of the cores that workers compute
on. Frames are those of the kernel before a card would cut them (PACKET_VNET_HDR), up to
64 kB, so that there are few: one core passes about 10 Gbit/s of them, and less of those
that a limit of rates has cut.
"""

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks import crew, namespaces

# Of Linux, without names in the module socket.
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SOL_PACKET, _STATISTICS, _VNET_HDR, _IGNORE_OUTGOING = 263, 6, 15, 23
_ETH_P_ALL = 3
_HEADER = 10  # bytes of a virtio_net_hdr, which says how a frame is to be cut
_LONGEST = 1 << 17  # bytes of a frame
_AT_ONCE = 64  # frames of a port before those that are due go out
_BUFFER = 1 << 27  # bytes, for what arrives while the relay has no core
# What a connection may have on its way: a link of 5 Gbit/s and 50 ms holds half of it.
_WINDOW = 1 << 26
_PATIENCE = 60  # seconds to start, and to answer


@contextlib.contextmanager
def delayed(net: namespaces.Network, seconds: float) -> Iterator[None]:
    """Hosts whose frames take so much longer to any other host; 0 changes nothing.

    Args:
      net: hosts, which are joined by their bridge again at the end.
      seconds: one way.

    Raises:
      RuntimeError: frames came faster than the relay read them, and some were lost.
    """
    if not seconds:
        yield
        return
    ports = [net.port(host) for host in range(net.hosts)]
    command = [sys.executable, "-m", "benchmarks.relay", str(seconds), *ports]
    with contextlib.ExitStack() as stack:
        for undo in undo_commands(net):
            stack.callback(namespaces.run, undo)
        for each in delay_commands(net):
            namespaces.run(each)
        relay = crew.start("the relay", [command])
        stack.callback(relay.close)
        relay.ask(["began"], _PATIENCE)
        yield
        [lost] = relay.ask(["lost"], _PATIENCE)
        if lost:
            raise RuntimeError(f"the relay was too slow for these rates: lost {lost}")


def delay_commands(net: namespaces.Network) -> list[namespaces.Command]:
    """What takes all ports out of the bridge, and lets windows be as large as links."""
    found = [f"ip link set {net.port(h)} nomaster".split() for h in range(net.hosts)]
    for host in range(net.hosts):
        inside = ["ip", "netns", "exec", net.namespace(host), "sh", "-c"]
        for name, first in (("wmem", 16384), ("rmem", 131072)):
            write = f"echo 4096 {first} {_WINDOW} > /proc/sys/net/ipv4/tcp_{name}"
            found.append([*inside, write])
    return found


def undo_commands(net: namespaces.Network) -> list[namespaces.Command]:
    """What joins all ports by the bridge again."""
    hosts = range(net.hosts)
    return [f"ip link set {net.port(h)} master {net.bridge}".split() for h in hosts]


# --- Frames that wait -----------------------------------------------------------------


class Held(NamedTuple):
    """A frame that waits."""

    until: float  # seconds of the clock
    frame: bytes
    ports: list[int]  # which it goes to


def targets(
    frame: bytes, source: int, known: dict[bytes, int], ports: int
) -> list[int]:
    """The ports that a frame goes to, by the addresses in it, as a switch finds them.

    Args:
      frame: with the header of virtio before it.
      source: port at which it came in.
      known: port of each address; that of the sender is added.
      ports: how many there are; to a receiver that is not known, all others.

    Example:
      >>> targets(bytes(10) + b"to 002by 001", 0, {b"to 002": 2}, ports=3)
      [2]
    """
    receiver = frame[_HEADER : _HEADER + 6]
    known[frame[_HEADER + 6 : _HEADER + 12]] = source
    place = known.get(receiver)
    if place is None:
        return [port for port in range(ports) if port != source]
    return [] if place == source else [place]


def due(held: deque[Held], now: float) -> Iterator[Held]:
    """Take the frames out whose time has come, in the order in which they came in."""
    while held and held[0].until <= now:
        yield held.popleft()


def pause(held: deque[Held], now: float) -> float | None:
    """Seconds until the next frame is due; None if there is none."""
    return max(0.0, held[0].until - now) if held else None


# --- The process ----------------------------------------------------------------------


def serve(seconds: float, names: Sequence[str]) -> None:
    """Pass frames until the input ends; answer each line with those lost so far."""
    with contextlib.suppress(PermissionError):  # of a user namespace
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # workers compute on all cores
    ports = [_opened(name) for name in names]
    known: dict[bytes, int] = {}
    held: deque[Held] = deque()
    lost = 0
    while True:
        # Not epoll, whose time is counted in milliseconds.
        wait = pause(held, time.monotonic())
        ready = set(select.select([sys.stdin, *ports], [], [], wait)[0])
        now = time.monotonic()
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            lost += sum(map(_lost, ports))
            print(json.dumps(lost), flush=True)
        for place, port in enumerate(ports):
            for frame in _arrived(port) if port in ready else ():
                to = targets(frame, place, known, len(ports))
                held.append(Held(now + seconds, frame, to))
        for _, frame, to in due(held, now):
            for place in to:
                lost += not _sent(ports[place], frame)


def _opened(name: str) -> socket.socket:
    """A socket that reads and writes the frames of a link."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for forced, usual in (
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        try:
            port.setsockopt(socket.SOL_SOCKET, forced, _BUFFER)
        except PermissionError:  # of a user namespace: as much as the system allows
            port.setsockopt(socket.SOL_SOCKET, usual, _BUFFER)
    port.setblocking(False)
    port.bind((name, _ETH_P_ALL))
    return port


def _arrived(port: socket.socket) -> Iterator[bytes]:
    for _ in range(_AT_ONCE):
        try:
            yield port.recv(_LONGEST)
        except BlockingIOError:
            return


def _sent(port: socket.socket, frame: bytes) -> bool:
    """Write a frame; False if the relay itself has no room for it."""
    try:
        port.send(frame)
    except BlockingIOError:
        return False
    except OSError as error:
        # The queue of the receiver's limit is full: a loss as at any switch.
        if error.errno != errno.ENOBUFS:
            raise
    return True


def _lost(port: socket.socket) -> int:
    """Frames that found no room in the buffer since the last call."""
    return int(struct.unpack("II", port.getsockopt(_SOL_PACKET, _STATISTICS, 8))[1])


if __name__ == "__main__":
    serve(float(sys.argv[1]), sys.argv[2:])
