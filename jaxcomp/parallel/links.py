"""A connection of each process to process 0, by which they watch each other."""

import json
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Peer", "Place", "connected"]

_SPEAK_SECONDS = 5  # for whoever has connected to say who it is


class Place(NamedTuple):
    """Where this process is among those of its run."""

    process: int
    processes: int
    host: str  # of process 0, as the others reach it
    limit: float  # seconds of silence, after which a process is lost


@dataclass
class Peer:
    """The process at the other end of a connection."""

    link: socket.socket
    name: str
    heard: float  # when, by time.monotonic
    rest: bytes = b""  # a line that has begun
    has_left: bool = False
    told: str = ""  # what it says of another one that is lost
    failed: str = ""  # the error that ended it
    failed_at: float = float("inf")


def connected(
    place: Place, offer: Callable[[str], None], offered: Callable[[], str]
) -> list[Peer]:
    """The processes that this one is connected to: all of them, or process 0.

    Args:
      place: of this process.
      offer: gives a text of process 0 to the others.
      offered: waits for that text.

    Raises:
      OSError: a process cannot be reached on the port that process 0 has chosen.
    """
    name = f"{platform.node()} (pid {os.getpid()})"
    if place.process:
        port, token = offered().split()
        link = socket.create_connection((place.host, int(port)), place.limit)
        link.sendall(json.dumps([token, place.process, name]).encode() + b"\n")
        names = {0: json.loads(_first_line(link))}
        links = {0: link}
    else:
        links, names = _accept(place, offer, name)
    for link in links.values():
        link.setblocking(False)
    known = {i: f"process {i} of {place.processes} on {names[i]}" for i in links}
    now = time.monotonic()
    return [Peer(links[index], known[index], now) for index in sorted(links)]


def _accept(
    place: Place, offer: Callable[[str], None], name: str
) -> tuple[dict[int, socket.socket], dict[int, str]]:
    """On process 0: the connections and the names of the others."""
    links: dict[int, socket.socket] = {}
    names: dict[int, str] = {}
    token = secrets.token_hex(16)  # others on the network may connect too
    until = time.monotonic() + place.limit
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(
        ("", 0), family=family, dualstack_ipv6=both, backlog=place.processes
    ) as server:
        port = server.getsockname()[1]
        offer(f"{port} {token}")
        while len(links) < place.processes - 1:
            server.settimeout(max(0.1, until - time.monotonic()))
            try:
                link, _ = server.accept()
            except TimeoutError:
                missing = sorted({*range(1, place.processes)} - {*links})
                raise TimeoutError(
                    f"process {missing[0]} did not connect to port {port} of "
                    f"{platform.node()} in {place.limit:g} s"
                ) from None
            link.settimeout(_SPEAK_SECONDS)
            try:
                given, index, theirs = json.loads(_first_line(link))
                if not secrets.compare_digest(given, token):
                    raise ValueError("a stranger")
                link.sendall(json.dumps(name).encode() + b"\n")
            except (ValueError, TypeError, OSError):
                link.close()
            else:
                links[index], names[index] = link, theirs
    return links, names


def _first_line(link: socket.socket) -> bytes:
    """What the other side says first, byte by byte: the rest is for the thread."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 1000:
        line += link.recv(1) or b"\n"
    return line
