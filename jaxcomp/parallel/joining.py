"""Processes meet before a run; whoever waits is told for whom and until when."""

import datetime
import errno
import math
import platform
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax

# The number of processes; jax.process_count() would look for devices. And the address
# of process 0, where jax finds it.
from jax._src import clusters, distributed

from jaxcomp.errors import UserError
from jaxcomp.parallel.cluster import Cluster
from jaxcomp.parallel.links import Place, connected
from jaxcomp.parallel.peers import watch_peers
from jaxcomp.parallel.relay import address_of, relay

__all__ = ["NotJoined", "is_deserted", "join", "join_seconds", "peer_seconds"]

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
        Place(index, count, address_of(address)[0], limit),
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
