"""Processes that watch each other, from joining until the last has ended."""

import atexit
import contextlib
import datetime
import errno
import json
import math
import os
import platform
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax._src import clusters, distributed

from jaxcomp.core.errors import UserError, message_of
from jaxcomp.parallel.cluster import Cluster

_SPEAK_SECONDS = 5  # for whoever has connected to say who it is


class PeerPlace(NamedTuple):
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
    place: PeerPlace, offer: Callable[[str], None], offered: Callable[[], str]
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
    place: PeerPlace, offer: Callable[[str], None], name: str
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


_LATE_SECONDS = 5.0
_CONNECT_SECONDS = 10.0
_BYTES = 1 << 16


def address_of(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT".

    Example:
      >>> address_of("server0:9911"), address_of("[::1]:9911")
      (('server0', 9911), ('::1', 9911))
    """
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def relay(target: str, late: float = _LATE_SECONDS) -> str:
    """Listen on this machine, and pass everything on to an address and back.

    Args:
      target: "HOST:PORT". While nothing listens there, connections are closed again, so
        that whoever connects tries once more.
      late: seconds before the end of a connection there is passed on.

    Returns:
      The address to connect to.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            _in_thread(lambda near=near: _join(near, target, late))

    _in_thread(serve)
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _join(near: socket.socket, target: str, late: float) -> None:
    try:
        far = socket.create_connection(address_of(target), _CONNECT_SECONDS)
    except OSError:
        near.close()
        return
    far.settimeout(None)
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _in_thread(lambda: _copy(near, far, 0.0))
    _copy(far, near, late)
    near.close()
    far.close()


def _copy(source: socket.socket, target: socket.socket, late: float) -> None:
    """Pass bytes on until one end is closed; then close the target for writing."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(_BYTES):
            target.sendall(chunk)
    time.sleep(late)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _in_thread(act: Callable[[], None]) -> None:
    threading.Thread(target=act, name="relay", daemon=True).start()


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


# The number of processes; jax.process_count() would look for devices. And the address
# of process 0, where jax finds it.


JOIN_SECONDS = 300  # a queue or an image may hold up other hosts that long
PEER_SECONDS = 60  # without a sign of life, after which a process counts as lost
_SILENT_SECONDS = 2.0  # of waiting, before anything is said
# jax ends the process with a dump of its stack at its own limits; ours come first.
_LATER = 3600
_PEERS = "jaxcomp/peers"  # where process 0 says how the others reach it
_deserted = threading.Event()


class NotJoined(UserError):
    """Not all processes of a run came together in time."""

    exit_code = 1


def is_deserted() -> bool:
    """Whether a thread still waits for processes that did not come in time.

    Only the end of this process ends it.
    """
    return _deserted.is_set()


def join(cluster: Cluster, seconds: float, limit: float = PEER_SECONDS) -> int:
    """Connect to the other processes of a run; Ctrl-C ends the waiting.

    Args:
      cluster: as `find_cluster` returned it.
      seconds: after which this gives up.
      limit: seconds of silence, after which another process counts as lost.

    Returns:
      The number of all processes.

    Raises:
      NotJoined: not all came in time, or nothing listens or can listen at the address.
    """
    failures: list[Exception] = []
    done = threading.Event()
    jax_seconds = math.ceil(seconds) + _LATER

    def connect() -> None:
        try:
            _connect(_placed(cluster, jax_seconds), jax_seconds, limit)
        except Exception as error:
            failures.append(error)
        done.set()

    began = time.monotonic()
    until = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    waiting = f"{_others(cluster)}, until {until:%H:%M:%S}; Ctrl-C ends it"
    # A wait in jax itself hears no signal: the main thread stays outside.
    thread = threading.Thread(target=connect, name="join", daemon=True)
    _deserted.set()
    thread.start()
    if not done.wait(min(_SILENT_SECONDS, seconds)):
        print(f"waiting for {waiting}", file=sys.stderr, flush=True)
        done.wait(max(0.0, seconds - (time.monotonic() - began)))
    if not done.is_set():
        raise NotJoined(
            f"{_others(cluster)} did not come within {seconds:g} s; this is "
            f"{_self(cluster)} on {platform.node()}. Look at what the others print, "
            "and whether they reach that address; --join-timeout=SECONDS waits longer"
        )
    thread.join()
    _deserted.clear()
    if failures:
        raise NotJoined(
            f"{_self(cluster)} on {platform.node()} cannot join the others at "
            f"{cluster.coordinator or 'the address that jax found'}: {failures[0]}"
        ) from failures[0]
    return distributed.global_state.num_processes


def _placed(cluster: Cluster, seconds: int) -> Cluster:
    """The cluster with what jax finds."""
    known = (cluster.coordinator, cluster.processes, cluster.process)
    if None in known:
        known = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            *known, cluster.devices, cluster.method, seconds
        )[:3]
    address, count, index = known
    return cluster._replace(coordinator=address, processes=count, process=index)


def _claim(cluster: Cluster) -> None:
    """Refuse the number of another process of this host, while that one lives.

    Two of one number meet in jax, which ends all processes of the run with a dump. The
    kernel keeps the name for this process; it does so on Linux alone.
    """
    place = f" {cluster.coordinator} {cluster.process}"
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind("\0jaxcomp" + place[-90:])
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"another process of this host is {_self(cluster)} already"
                raise UserError(f"{message}: give each its own --process") from None
        claim.detach()  # held until this process ends


def _connect(cluster: Cluster, seconds: int, limit: float) -> None:
    """Connect to jax's coordinator, and to the process that it is in."""
    count, index, address = cluster.processes, cluster.process, cluster.coordinator
    if address is None or count is None or index is None:
        raise RuntimeError("jax does not find where process 0 runs")
    _claim(cluster)
    near = cluster._replace(coordinator=relay(address) if index else address)
    jax.distributed.initialize(
        **near.arguments(),
        initialization_timeout=seconds,
        heartbeat_timeout_seconds=_LATER,
    )
    client: Any = distributed.global_state.client
    peers = connected(
        PeerPlace(index, count, address_of(address)[0], limit),
        lambda text: client.key_value_set(_PEERS, text),
        lambda: client.blocking_key_value_get(_PEERS, round(1000 * limit)),
    )
    watch_peers(peers, limit)


def join_seconds(variables: Mapping[str, str]) -> float:
    """How long to wait for the others: JAXCOMP_JOIN_TIMEOUT, or `JOIN_SECONDS`.

    Example:
      >>> join_seconds({})
      300
    """
    return _seconds(variables, "join-timeout", JOIN_SECONDS)


def peer_seconds(variables: Mapping[str, str]) -> float:
    """After which silence a process is lost: JAXCOMP_PEER_TIMEOUT, or `PEER_SECONDS`.

    Example:
      >>> peer_seconds({"JAXCOMP_PEER_TIMEOUT": "20"})
      20.0
    """
    return _seconds(variables, "peer-timeout", PEER_SECONDS)


def _seconds(variables: Mapping[str, str], flag: str, default: float) -> float:
    name = f"JAXCOMP_{flag.upper().replace('-', '_')}"
    text = variables.get(name, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        message = f"is a number of seconds above 0, not {text!r}"
        raise UserError(f"--{flag} ({name}) {message}")
    return float(text) if text else default


def _self(cluster: Cluster) -> str:
    if cluster.process is None:
        return "this process"
    return f"process {cluster.process} of {cluster.processes}"


def _others(cluster: Cluster) -> str:
    """The processes that are waited for, and where.

    Example:
      >>> _others(Cluster("a:1", 2, 0))
      'process 1 of 2 at a:1'
    """
    address = cluster.coordinator or "the address that jax found"
    count, index = cluster.processes, cluster.process
    if count is None or index is None:
        return f"the other processes at {address}"
    if count == 2:
        return f"process {1 - index} of 2 at {address}"
    return f"the {count - 1} other processes of {count} at {address}"
