"""Processes that watch each other, as threads: no jax, and sockets of this machine."""

import contextlib
import json
import queue
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from jaxcomp.core.errors import UserError
from jaxcomp.parallel import peers
from jaxcomp.parallel.peers import Peer, PeerPlace, connected, peer_seconds, relay

FOREVER = 100.0
AGAIN = "The same command goes on from the newest whole checkpoint."


@pytest.fixture
def met():
    """A function that connects processes, and returns whom each is connected to."""
    made: list[Peer] = []

    def meet(count: int, limit: float = FOREVER) -> list[list[Peer]]:
        text: Future[str] = Future()
        with ThreadPoolExecutor(count) as pool:
            places = [PeerPlace(i, count, "127.0.0.1", limit) for i in range(count)]
            tasks = [
                pool.submit(connected, p, text.set_result, text.result) for p in places
            ]
            found = [task.result() for task in tasks]
        made.extend(peer for mine in found for peer in mine)
        return found

    yield meet
    die(made)  # whoever still watches ends
    for thread in threading.enumerate():
        if thread.name == "watching":
            thread.join(30)
    for peer in made:
        peer.link.close()


def watching(mine: list[Peer], limit: float = FOREVER) -> "queue.Queue[str]":
    """Watch in a thread; the queue gets the message with which the process ends."""
    ended: queue.Queue[str] = queue.Queue()
    arguments = (mine, limit, ended.put)
    threading.Thread(target=peers.watch, args=arguments, name="watching").start()
    return ended


def say(mine: list[Peer], **message: str) -> None:
    for peer in mine:
        peer.link.sendall(json.dumps(message).encode() + b"\n")


def die(mine: list[Peer]) -> None:
    """What the kernel does when a process is killed."""
    for peer in mine:
        with contextlib.suppress(OSError):
            peer.link.shutdown(socket.SHUT_RDWR)


def test_all_hear_which_one_has_died(met):
    first, second, third = met(3)
    ends = [watching(first), watching(third)]
    die(second)
    for ended in ends:
        message = ended.get(timeout=30)
        assert message.startswith("process 1 of 3 on ")
        assert "is lost: it was killed, or its host went down" in message
        assert message.endswith(AGAIN)


def test_the_death_of_process_0_is_heard_by_all(met):
    first, second, third = met(3)
    ends = [watching(second), watching(third)]
    die(first)
    for ended in ends:
        assert ended.get(timeout=30).startswith("process 0 of 3 on ")


def test_a_silent_process_is_lost_after_the_limit(met):
    first, _, third = met(3, limit=0.5)
    ends = [watching(first, 0.5), watching(third, 0.5)]
    for ended in ends:
        message = ended.get(timeout=30)
        assert message.startswith("process 1 of 3 on ")
        assert "nothing was heard of it for 0.5 s (--peer-timeout)" in message


def test_a_pause_of_this_process_is_not_held_against_the_others(met, monkeypatch):
    first, second = met(2)
    clock = time.monotonic
    ended = watching(first, 4.0)
    second[0].link.setblocking(True)
    assert second[0].link.recv(1) == b"\n"  # the thread is there
    monkeypatch.setattr(peers.time, "monotonic", lambda: clock() + 10 * FOREVER)
    say(second)  # wakes the thread
    with pytest.raises(queue.Empty):
        ended.get(timeout=0.3)
    die(second)
    message = ended.get(timeout=30)
    assert "this process stood still for 1" in message
    assert "and process 1 of 2 on " in message


def test_who_speaks_is_not_lost_and_who_leaves_neither(met):
    first, second = met(2, limit=0.4)
    ended, other = watching(first, 0.4), watching(second, 0.4)
    with pytest.raises(queue.Empty):
        ended.get(timeout=1.0)
    assert other.empty()
    say(second, bye="")
    die(second)
    with pytest.raises(queue.Empty):
        ended.get(timeout=0.6)


def test_an_error_that_nobody_agreed_on_is_told_after_a_while(met, monkeypatch):
    monkeypatch.setattr(peers, "_OWN_END_SECONDS", 0.1)
    first, second = met(2, limit=1.0)
    ended = watching(first, 1.0)
    say(second, bye="the disk is full")
    assert ended.get(timeout=30).endswith("has failed: the disk is full")


def test_strangers_are_not_let_in():
    text: Future[str] = Future()
    with ThreadPoolExecutor(2) as pool:
        place = PeerPlace(0, 2, "127.0.0.1", FOREVER)
        first = pool.submit(connected, place, text.set_result, text.result)
        port, token = text.result(timeout=30).split()
        for line in (b"GET / HTTP/1.1\r\n\r\n", b"7\n", b'["wrong", 1, "me"]\n'):
            with socket.create_connection(("127.0.0.1", int(port))) as stranger:
                stranger.sendall(line)
        second = connected(
            PeerPlace(1, 2, "127.0.0.1", FOREVER), print, lambda: f"{port} {token}"
        )
        [peer] = first.result(timeout=30)
        assert peer.name.startswith("process 1 of 2 on ")
        for end in (peer, *second):
            end.link.close()


def test_a_process_that_cannot_connect_is_named():
    text: Future[str] = Future()
    place = PeerPlace(0, 3, "127.0.0.1", 0.2)
    with pytest.raises(OSError, match="process 1 did not connect to port .* in 0.2 s"):
        connected(place, text.set_result, text.result)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_the_limit_is_a_number_of_seconds(text):
    with pytest.raises(UserError, match=f"--peer-timeout .* not '{text}'"):
        peer_seconds({"JAXCOMP_PEER_TIMEOUT": text})


# --- The way to the coordinator -----------------------------------------------------


def through(late: float) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection through a relay."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = relay(f"127.0.0.1:{server.getsockname()[1]}", late)
        near = socket.create_connection(("127.0.0.1", int(address.split(":")[1])))
        far, _ = server.accept()
    return near, far


def test_a_relay_passes_on_what_is_said():
    near, far = through(late=0.0)
    with near, far:
        near.sendall(b"question")
        assert far.recv(100) == b"question"
        far.sendall(b"answer")
        assert near.recv(100) == b"answer"
        near.close()
        assert far.recv(100) == b""


@pytest.mark.parametrize("late", [0.0, FOREVER])
def test_the_end_of_the_coordinator_comes_late(late):
    near, far = through(late)
    with near:
        far.close()
        near.settimeout(0.3 if late else 30)
        if late:
            with pytest.raises(TimeoutError):
                near.recv(1)
        else:
            assert near.recv(1) == b""


def test_where_nothing_listens_a_relay_hangs_up():
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    address = relay(f"127.0.0.1:{free}")
    with socket.create_connection(("127.0.0.1", int(address.split(":")[1]))) as near:
        near.settimeout(30)
        assert near.recv(1) == b""
