"""A way to the coordinator on which jax hears late that a connection has ended.

jax ends a process on the spot, with a dump of its own, when its connection to the
coordinator closes. Through a relay this takes some seconds, in which `peers` says what
was lost.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

__all__ = ["address_of", "relay"]

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
