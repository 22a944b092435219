"""Which process of a run is lost, said once by each of the others, which then end.

Every process keeps a connection to process 0 and sends a sign of life over it. The
kernel closes the connection of a process that dies; one that hangs, or whose link is
cut, is silent. The main thread may wait in a collective for ever, so a thread of its own
ends the process.

A line is a sign of life if it is empty, else JSON: {"bye": ""} before a process ends,
{"bye": message} if an error ends it, {"lost": message} from process 0 to the others.
"""

import atexit
import contextlib
import json
import os
import platform
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from jaxcomp.errors import message_of

__all__ = ["Place", "await_verdict", "leave", "watch_peers"]

_BEATS = 20  # signs of life within the limit
# After the error of a process: the others may be about to tell it themselves.
_OWN_END_SECONDS = 5.0
_AGAIN = "The same command goes on from the newest whole checkpoint."


class Place(NamedTuple):
    """Where this process is among those of its run."""

    index: int
    count: int
    host: str  # of process 0, as the others reach it
    limit: float  # seconds of silence, after which a process is lost


@dataclass
class _Peer:
    """The process at the other end of a connection."""

    link: socket.socket
    name: str
    heard: float  # when, by time.monotonic
    rest: bytes = b""  # a line that has begun
    has_left: bool = False
    told: str = ""  # what it says of another one that is lost
    failed: str = ""  # the error that ended it
    failed_at: float = float("inf")


_here: list[_Peer] = []  # the others that this process is connected to
_left = threading.Event()


def watch_peers(
    place: Place,
    offer: Callable[[str], None],
    offered: Callable[[], str],
    end: Callable[[str], None] | None = None,
) -> None:
    """Connect all processes, and watch the others from now on.

    Args:
      place: of this process.
      offer: gives a text of process 0 to the others.
      offered: waits for that text.
      end: ends this process with a message; its default does so at once.

    Raises:
      OSError: a process cannot be reached on the port that process 0 has chosen.
    """
    if place.count == 1:
        return
    name = f"{platform.node()} (pid {os.getpid()})"
    if place.index:
        port, token = offered().split()
        link = socket.create_connection((place.host, int(port)), place.limit)
        link.sendall(json.dumps([token, place.index, name]).encode() + b"\n")
        names = {0: json.loads(_first_line(link))}
        links = {0: link}
    else:
        links, names = _accept(place, offer, name)
    now = time.monotonic()
    for index, link in links.items():
        link.setblocking(False)
        known = f"process {index} of {place.count} on {names[index]}"
        _here.append(_Peer(link, known, now))
    atexit.register(_leave_at_exit)
    arguments = (_here, place, end or _end)
    threading.Thread(target=_watch, args=arguments, name="peers", daemon=True).start()


def leave(why: str = "") -> None:
    """Tell the others that this process ends; only the first call counts.

    Args:
      why: the message of the error that ends it.
    """
    if not _left.is_set():
        _left.set()
        _tell(_here, {"bye": why})


def await_verdict() -> None:
    """Wait in case the error of this process comes from the loss of another one.

    A collective fails when a process dies, at about the time when its connection
    closes. The thread then ends this process here.
    """
    if _here:
        time.sleep(2 * _OWN_END_SECONDS)


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
        ("", 0), family=family, dualstack_ipv6=both, backlog=place.count
    ) as server:
        port = server.getsockname()[1]
        offer(f"{port} {token}")
        while len(links) < place.count - 1:
            server.settimeout(max(0.1, until - time.monotonic()))
            try:
                link, _ = server.accept()
            except TimeoutError:
                missing = sorted({*range(1, place.count)} - {*links})
                raise TimeoutError(
                    f"process {missing[0]} did not connect to port {port} of "
                    f"{platform.node()} within {place.limit:g} s"
                ) from None
            link.settimeout(place.limit)
            with contextlib.suppress(ValueError, OSError):
                given, index, theirs = json.loads(_first_line(link))
                if secrets.compare_digest(given, token):
                    link.sendall(json.dumps(name).encode() + b"\n")
                    links[index], names[index] = link, theirs
    return links, names


def _first_line(link: socket.socket) -> bytes:
    """What the other side says first, byte by byte: the rest is for the thread."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 1000:
        line += link.recv(1) or b"\n"
    return line


def _watch(peers: list[_Peer], place: Place, end: Callable[[str], None]) -> None:
    """Listen and give signs of life until `end`."""
    selector = selectors.DefaultSelector()
    for peer in peers:
        selector.register(peer.link, selectors.EVENT_READ, peer)
    beat = place.limit / _BEATS
    spoke = awake = time.monotonic()
    while True:
        ready = selector.select(beat)
        now = time.monotonic()
        if now - awake > place.limit:
            end(
                f"this process stood still for {now - awake:.0f} s, so the others have "
                f"gone on without it. {_AGAIN}"
            )
            return
        awake = now
        closed = {key.fd for key, _ in ready if not _hear(key.data, now)}
        if message := _lost(peers, closed, now, place.limit):
            _tell(peers, {"lost": message})
            end(message)
            return
        for key, _ in ready:
            if key.fd in closed:
                selector.unregister(key.fileobj)
        if now - spoke >= beat:
            spoke = now
            _tell(peers, None)


def _hear(peer: _Peer, now: float) -> bool:
    """Read what has come from a process; False if its connection is closed."""
    try:
        got = peer.link.recv(1 << 16)
    except BlockingIOError:
        return True
    except OSError:
        return False
    peer.heard = now
    *lines, peer.rest = (peer.rest + got).split(b"\n")
    for line in filter(None, lines):
        said = json.loads(line)
        peer.told = said.get("lost", "")
        peer.has_left = "bye" in said
        if said.get("bye"):
            peer.failed, peer.failed_at = said["bye"], now
    return bool(got)


def _lost(peers: Iterable[_Peer], closed: set[int], now: float, limit: float) -> str:
    """What is to be said of the first process that is lost; "" if none is."""
    for peer in peers:
        if peer.told:
            return peer.told
        if now - peer.failed_at > _OWN_END_SECONDS:
            return f"{peer.name} has failed: {peer.failed}"
        if peer.has_left:
            continue
        if peer.link.fileno() in closed:
            why = "it was killed, or its host went down"
            return f"{peer.name} is lost: {why}. {_AGAIN}"
        if now - peer.heard > limit:
            silent = f"nothing was heard of it for {limit:g} s (--peer-timeout)"
            why = f"{silent}, so it hangs or its link is cut"
            return f"{peer.name} is lost: {why}. {_AGAIN}"
    return ""


def _tell(peers: Iterable[_Peer], message: dict[str, str] | None) -> None:
    """Send a line to the others, where it can be sent at once."""
    line = (json.dumps(message).encode() if message else b"") + b"\n"
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.link.send(line)


def _leave_at_exit() -> None:
    error = getattr(sys, "last_value", None)  # that no code has caught
    leave(message_of(error) if error else "")


def _end(message: str) -> None:
    """End this process, whatever its other threads do."""
    shown = "\033[?25h\n" if sys.stdout.isatty() else ""  # a live bar hides the cursor
    print(f"{shown}{message}", file=sys.stderr, flush=True)
    os._exit(1)
