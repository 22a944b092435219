"""Processes meet before a run; whoever waits is told for whom and until when."""

import datetime
import math
import platform
import sys
import threading
import time
from collections.abc import Mapping

import jax

# The number of processes; jax.process_count() would look for devices.
from jax._src import distributed

from jaxcomp.errors import UserError
from jaxcomp.parallel.cluster import Cluster

__all__ = ["JOIN_SECONDS", "NotJoined", "is_deserted", "join", "join_seconds"]

JOIN_SECONDS = 300  # a queue or an image may hold up other hosts that long
PEER_SECONDS = 60  # without a sign of life, after which a process counts as lost
_SILENT_SECONDS = 2.0  # of waiting, before anything is said
# jax ends the process with a dump of its stack at its own limit; ours comes first.
_LATER = 3600
_deserted = threading.Event()


class NotJoined(UserError):
    """Not all processes of a run came together in time."""

    exit_code = 1


def is_deserted() -> bool:
    """Whether a thread still waits for processes that did not come in time.

    Only the end of this process ends it.
    """
    return _deserted.is_set()


def join(cluster: Cluster, seconds: float) -> int:
    """Connect to the other processes of a run; Ctrl-C ends the waiting.

    Args:
      cluster: as `find_cluster` returned it.
      seconds: after which this gives up.

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
            jax.distributed.initialize(
                **cluster.arguments(),
                initialization_timeout=jax_seconds,
                heartbeat_timeout_seconds=PEER_SECONDS,
            )
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


def join_seconds(variables: Mapping[str, str]) -> float:
    """How long to wait for the others: JAXCOMP_JOIN_TIMEOUT, or `JOIN_SECONDS`.

    Example:
      >>> join_seconds({})
      300
    """
    text = variables.get("JAXCOMP_JOIN_TIMEOUT", "")
    try:
        seconds = float(text or JOIN_SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        message = f"is a number of seconds above 0, not {text!r}"
        raise UserError(f"--join-timeout (JAXCOMP_JOIN_TIMEOUT) {message}")
    return float(text) if text else JOIN_SECONDS


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
