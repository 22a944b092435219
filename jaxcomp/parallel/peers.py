"""Which process of a run is lost, said once by each of the others, which then end.

Each process sends signs of life to process 0, and process 0 to all. The kernel closes
the connection of a process that dies; one that hangs, or whose link is cut, is silent.
The main thread may wait in a collective for ever, so another thread ends the process.

A line is a sign of life if it is empty, else JSON: {"bye": ""} before a process ends,
{"bye": message} if an error ends it, {"lost": message} from process 0 to the others.
"""

import atexit
import contextlib
import json
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterable

from jaxcomp.errors import message_of
from jaxcomp.parallel.links import Peer

__all__ = ["await_verdict", "leave", "watch", "watch_peers"]

_BEATS = 20  # signs of life within the limit
# After the error of a process: the others may be about to tell it themselves.
_OWN_END_SECONDS = 5.0
_AGAIN = "The same command goes on from the newest whole checkpoint."


_here: list[Peer] = []  # the others that this process is connected to
_own_end: list[tuple[str, int]] = []  # what this process said of its end, if anything


def watch_peers(peers: list[Peer], limit: float) -> None:
    """Watch other processes until this one ends.

    Args:
      peers: that this process is connected to.
      limit: seconds of silence, after which one is lost.
    """
    _here.extend(peers)
    atexit.register(_leave_at_exit)
    threading.Thread(
        target=watch, args=(peers, limit), name="peers", daemon=True
    ).start()


def leave(why: str = "", code: int = 1) -> None:
    """Tell the others that this process ends; only the first call counts.

    Args:
      why: the message of the error that ends it.
      code: its exit code then.
    """
    if not _own_end:
        _own_end.append((why, code))
        _tell(_here, {"bye": why})


def await_verdict() -> None:
    """Wait in case the error of this process comes from the loss of another one.

    A collective fails when a process dies, at about the time when its connection
    closes. The thread then ends this process here.
    """
    if _here:
        time.sleep(2 * _OWN_END_SECONDS)


def watch(
    peers: list[Peer], limit: float, end: Callable[[str], None] | None = None
) -> None:
    """Listen, and give signs of life, until a process is lost.

    Args:
      peers: as `connected` returned them.
      limit: seconds of silence, after which one is lost.
      end: is called with the message; without it, this process ends.
    """
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer.link, selectors.EVENT_READ, peer)
        message = _watched(selector, peers, limit)
    if message:
        (end or _end)(message)


def _watched(selector: selectors.BaseSelector, peers: list[Peer], limit: float) -> str:
    """Listen, and give signs of life, until something has to be said."""
    beat = limit / _BEATS
    spoke = awake = time.monotonic()
    still = 0.0  # seconds for which this process was stopped
    while True:
        ready = selector.select(beat)
        now = time.monotonic()
        if now - awake > limit / 2:  # perhaps all were stopped, as Slurm does
            still = now - awake
            for peer in peers:
                peer.heard = now
        awake = now
        closed = {key.fd for key, _ in ready if not _hear(key.data, now)}
        if message := _lost(peers, closed, now, limit, still):
            _tell(peers, {"lost": message})
            return message
        for key, _ in ready:
            if key.fd in closed:
                selector.unregister(key.fileobj)
        if not selector.get_map() and not any(peer.failed for peer in peers):
            return ""  # all have left
        if now - spoke >= beat:
            spoke = now
            _tell(peers, None)


def _hear(peer: Peer, now: float) -> bool:
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
        peer.has_left = peer.has_left or "bye" in said
        if said.get("bye"):
            peer.failed, peer.failed_at = said["bye"], now
    return bool(got)


def _lost(
    peers: Iterable[Peer], closed: set[int], now: float, limit: float, still: float
) -> str:
    """What is to be said of the first process that is lost; "" if none is."""
    for peer in peers:
        has_ended = peer.told or (peer.link.fileno() in closed and not peer.has_left)
        if has_ended and still:  # so this process is the one that was lost
            went = f"this process stood still for {still:.0f} s, and {peer.name} ended"
            return f"{went} meanwhile. {_AGAIN}"
        if peer.told:
            return peer.told
        if now - peer.failed_at > _OWN_END_SECONDS:
            return f"{peer.name} has failed: {peer.failed}"
        if peer.has_left:
            continue
        if has_ended:
            why = "it was killed, or its host went down"
            return f"{peer.name} is lost: {why}. {_AGAIN}"
        if now - peer.heard > limit:
            silent = f"nothing was heard of it for {limit:g} s (--peer-timeout)"
            why = f"{silent}, so it hangs or its link is cut"
            return f"{peer.name} is lost: {why}. {_AGAIN}"
    return ""


def _tell(peers: Iterable[Peer], message: dict[str, str] | None) -> None:
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
    why, code = _own_end[0] if _own_end else ("", 1)
    if why:  # the error of this process was told already
        os._exit(code)
    shown = "\033[?25h\n" if sys.stdout.isatty() else ""  # a live bar hides the cursor
    try:
        print(f"{shown}{message}", file=sys.stderr, flush=True)
    finally:  # also where nobody reads it
        os._exit(1)
