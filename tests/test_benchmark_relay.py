"""The relay of the network benchmark: its queue, its commands, and a run of it."""

import os
from collections import deque

import pytest

from benchmarks import link_rate, namespaces, relay, rounds
from benchmarks.namespaces import Network
from benchmarks.relay import Held

NET = Network(owner=4194304, hosts=3)
WHY_NOT = namespaces.why_not()
A, B, C = b"\x02aaaaa", b"\x02bbbbb", b"\x02ccccc"
EVERYBODY = b"\xff" * 6


def frame(to: bytes, by: bytes) -> bytes:
    """With the header of virtio before it, and some content."""
    return bytes(10) + to + by + b"\x08\x00..."


def test_frames_leave_in_their_order_when_their_time_has_come():
    held = deque(Held(until, b"", [0]) for until in (1.0, 1.0, 1.5))
    assert relay.pause(held, 0.25) == 0.75
    assert list(relay.due(held, 0.99)) == []
    assert [each.until for each in relay.due(held, 1.0)] == [1.0, 1.0]
    assert relay.pause(held, 2.0) == 0, "late, and at once"
    assert [each.until for each in relay.due(held, 2.0)] == [1.5]
    assert relay.pause(held, 2.0) is None, "nothing waits: no timeout"


def test_a_frame_goes_where_its_receiver_was_seen_and_else_everywhere():
    known: dict[bytes, int] = {}
    assert relay.targets(frame(B, A), 0, known, 3) == [1, 2], "B has said nothing yet"
    assert relay.targets(frame(A, B), 1, known, 3) == [0]
    assert relay.targets(frame(B, A), 0, known, 3) == [1]
    assert relay.targets(frame(EVERYBODY, C), 2, known, 3) == [0, 1]
    assert relay.targets(frame(B, B), 1, known, 3) == [], (
        "never back where it came from"
    )
    assert known == {A: 0, B: 1, C: 2}


needs_root = pytest.mark.skipif(
    bool(WHY_NOT) or os.geteuid() != 0, reason=WHY_NOT or "needs root in this process"
)


def children() -> set[str]:
    """Of this process, by number."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.slow
@needs_root
def test_hosts_behind_the_relay_are_as_far_as_asked():
    before = children()
    with namespaces.network(3) as net:
        assert link_rate.latency(net) < 0.02
        with relay.delayed(net, 0.03):
            assert 0.029 < link_rate.latency(net) < 0.09, "other load only adds"
            assert 0.029 < link_rate.latency(net, (2, 1)) < 0.09
            namespaces.limit(net, 100)
            (rate,) = link_rate.measure(net, [(0, 2)], 2.5)
            assert 10 < rate < 101, "limited as before"
            sent = [each.sent for each in namespaces.traffic(net)]
            assert sent[0] > 1e6 * rate / 8 > sent[1], (
                "the kernel still counts, by host"
            )
        assert children() == before
        namespaces.limit(net, None)
        assert link_rate.latency(net) < 0.02, "the bridge joins them again"


@pytest.mark.slow
@needs_root
def test_the_relay_ends_with_an_error_inside():
    before = children()

    def interrupted() -> None:
        with namespaces.network(2) as net, relay.delayed(net, 0.01):
            made.append(net)
            assert children() > before
            raise KeyboardInterrupt

    made: list[Network] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert children() == before
    assert made[0].bridge not in namespaces._names()


@pytest.mark.slow
@needs_root
def test_small_messages_over_gloo_take_two_latencies_each(capsys):
    """More than one for each of the 2, 6 and 1 messages; other load only adds."""
    words = ["--workers", "2", "--latency", "50", "--repeats", "3"]
    found = rounds.main(words)
    assert found.keys() == {(name, 2) for name in rounds.COLLECTIVES}
    assert found["all-reduce", 2] > 2.5
    assert found["all-reduce of three", 2] > 7.5
    assert found["permute", 2] > 1.25
    assert "latencies, by the model 12" in capsys.readouterr().out
