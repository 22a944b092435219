"""The network benchmark: its commands and counters, and a run where it is permitted."""

import csv
import os
import re
from collections import deque
from pathlib import Path

import pytest

from benchmarks import (
    leaving,
    link_rate,
    namespaces,
    network,
    network_report,
    on_hosts,
    peers_ddp,
    predict_check,
    relay,
    rounds,
    scaling,
    trees,
)
from benchmarks.namespaces import Network
from benchmarks.network_report import Row
from benchmarks.relay import Held
from jaxcomp import make_exchange, wire
from jaxcomp.wire import Collective, cost

NET = Network(owner=4194304, hosts=3)
WHY_NOT = namespaces.why_not()
needs_root = pytest.mark.skipif(
    bool(WHY_NOT) or os.geteuid() != 0, reason=WHY_NOT or "needs root in this process"
)


def test_names_are_short_enough_and_carry_the_process():
    names = [NET.bridge, *map(NET.port, range(3)), *map(NET.namespace, range(3))]
    assert len(set(names)) == 7
    assert max(map(len, names)) <= 15, "of a network interface"
    assert namespaces.leftovers(names, lambda pid: pid != 4194304) == names
    assert namespaces.leftovers([*names, "eth0", "jxnfoo"], lambda _: True) == []


def test_cases_are_methods_and_hooks_that_exist():
    titles = [case.title for case in network.CASES]
    assert len(set(titles)) == len(titles)
    for case in network.CASES:
        if case.hook:
            assert case.hook in peers_ddp.HOOKS
        else:
            assert make_exchange(
                case.exchange, case.compressor, case.memory, case.scope
            )


def row(method: str = "sign", rate: float = 100.0, ms: float = 100.0) -> Row:
    """3 MB leave a host; without a limit it takes 100 ms, 1 of it to copy them."""
    found = network_report.written([Collective("all-gather", 1_000_000, 4)])
    rates, times = (rate, 95.0, 24_000.0), (ms, ms, ms, 101.0, None)
    return Row(method, 4, 10, *rates, 3, *times, 3.1e6, 3e6, found)


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = [row(), row(rate=50.0)._replace(predicted=3.5, leaving=None, collectives="")]
    network.write_csv(tmp_path / "network.csv", rows)
    assert network_report.read(tmp_path / "network.csv") == rows
    assert network_report.read(tmp_path / "none.csv") == []
    assert network_report.collectives_of(rows[0]) == [
        Collective("all-gather", 1_000_000, 4)
    ]


STEP = {"timed": "resnet20, batch 32"}
LATE = {"latency": 10.0, "latency_measured": 10.5}


def test_rows_of_another_kind_stay_apart(tmp_path):
    """Of one method, rate, size and number of workers."""
    kinds = [row(), row(ms=130.0)._replace(**LATE), row(ms=250.0)._replace(**STEP)]
    rows = kinds
    for each in kinds:
        rows = network_report.replaced(rows, each)
    assert rows == kinds, "each replaced itself"
    assert sorted([*rows[1:], rows[0]], key=network._order) == kinds
    assert network_report.shown(rows) == kinds[:1]
    assert network_report.shown(kinds[1:]) == kinds[1:2]
    assert network_report.shown(kinds[2:]) == []

    network.write_csv(tmp_path / "network.csv", rows)
    found = predict_check.read(tmp_path / "network.csv")
    assert [float(each["ms"]) for each in found] == [100.0]


def test_the_prediction_waits_for_the_latency_that_was_measured():
    """Three rounds of twice 10.5 ms; without a relay, latency is in the local time."""
    late = row()._replace(**LATE)
    waiting = network_report.predicted(late) - network_report.predicted(row())
    assert waiting == pytest.approx(6 * 10.5)
    quick = row()._replace(latency_measured=0.1)
    assert network_report.predicted(quick) == network_report.predicted(row())
    fast = network_report.predicted(late, 1000.0)
    assert fast == pytest.approx(network_report.predicted(row(), 1000.0) + 63)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("--latency=-1", "at least 0: not -1"),
        ("--latency=nan", "at least 0: not nan"),
        ("--model=resnet21", "unknown model 'resnet21'. Did you mean"),
        ("--batch=30", "--batch 30 is not shared equally by 4 workers"),
        ("--cases=signs", "'signs'"),
    ],
)
def test_what_no_worker_could_do_is_refused(asked, told):
    with pytest.raises(SystemExit, match=re.escape(told)):
        network.main(["--out=nowhere", "--model=resnet20", asked])


def test_over_gloo_each_tensor_waits_for_words_and_messages():
    """What small messages between 2, 3 and 4 hosts took: 4, 8 and 12 latencies."""
    link = network_report.link_of(1e9, latency=1.0)
    for workers in (2, 3, 4):
        found = [Collective("all-reduce", 8, workers, tensors=5)]
        assert cost.cost(found, link).waiting == 5 * 4 * (workers - 1)
        gather = [Collective("all-gather", 8, workers)]
        assert cost.cost(gather, link).waiting == 2 * (workers - 1)
    late = row()._replace(collectives=network_report.written(found))
    assert network_report.collectives_of(late) == found


def test_the_prediction_leaves_out_what_copies_take_without_a_limit():
    found = row()
    assert found.local == pytest.approx(0.1)
    assert network_report.predicted(found) == pytest.approx(100 + 24e3 / 95)
    assert network_report.predicted(found, 1000.0) == pytest.approx(124)
    slower = found._replace(free=100.0)  # the copies alone would take longer
    assert slower.local == 0
    # 3 MB in what is left of the 200 ms that half of a step takes, 100 ms.
    assert network_report.needed(found, 0.5, 0.2) == pytest.approx(240)
    assert network_report.needed(found, 0.9, 0.2) == float("inf")
    # 3 MB in 100 ms against 6 MB in 40: 3 MB in 60 ms.
    twice = network_report.written([Collective("all-gather", 2_000_000, 4)])
    exact = row("exact")._replace(collectives=twice, unlimited=42.0)
    assert network_report.stops(found, exact) == pytest.approx(400)
    assert network_report.stops(found, exact._replace(unlimited=103.0)) == float("inf")


MEASURED = Path(__file__).parent.parent / "docs/measured"


def test_counters_of_the_kernel_hold_what_the_program_says():
    """Within 2 %, with the headers of packets where they were cut to 1,448 bytes."""
    with open(MEASURED / "leaving.csv", newline="") as file:
        found = [leaving.Row(**line) for line in csv.DictReader(file)]  # type: ignore
    kinds = {row.method.partition("(")[0] for row in found}
    assert kinds == {"exact", "gather", "two_phase", "power_sgd"}
    for row in found:
        assert float(row.payload) == pytest.approx(float(row.leaving), rel=0.02)
        headers = leaving.HEADERS * float(row.packets)
        assert float(row.counted) == pytest.approx(float(row.payload) + headers)
    rows = network_report.read(MEASURED / "network.csv")
    ours = [row for row in rows if row.leaving and row.timed == network_report.EXCHANGE]
    assert len(ours) > 40
    for row in ours:
        assert row.leaving is not None
        by_wire = wire.link_bytes(network_report.collectives_of(row))
        assert row.leaving == pytest.approx(by_wire, rel=1e-4)
        # Links below a Gbit/s are given packets one by one, of which every second one
        # is acknowledged.
        share = 1.5 * leaving.HEADERS / 1448 if row.rate < 1000 else 0
        assert row.counted == pytest.approx((1 + share) * row.leaving, rel=0.02)


@pytest.mark.slow
@needs_root
def test_two_hosts_exchange_and_leave_nothing_behind(tmp_path, capsys):
    sizes = ["--workers=2", "--scale=0.05", "--repeats=2", "--rates", "100"]
    network.main([f"--out={tmp_path}", *sizes, "--cases", "sign", "exact"])
    with open(tmp_path / "network.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [(r["method"], r["rate"]) for r in written] == [
        ("exact", "100.0"),
        ("sign", "100.0"),
    ]
    for found in network_report.read(tmp_path / "network.csv"):
        assert found.leaving is not None
        assert found.leaving < found.counted < 2 * found.leaving + 50_000
        assert abs(found.measured / found.rate - 1) < 0.1
    assert (tmp_path / "network.png").stat().st_size > 10_000
    assert "exact" in capsys.readouterr().out
    mine = f"{namespaces.PREFIX}{os.getpid()}"
    assert not [n for n in namespaces._names() if n.startswith(mine)]


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("kind", [[], ["--model=resnet8", "--batch=4"]])
def test_latency_is_in_the_time_and_in_the_prediction(tmp_path, kind, capsys):
    """Rounds of 100 ms, beside which nothing else on this machine counts."""
    sizes = ["--workers=2", "--scale=0.05", "--repeats=2", "--rates", "100"]
    words = [f"--out={tmp_path}", *sizes, *kind, "--latency=100", "--cases", "sign"]
    (found,) = network.main(words)
    assert found.latency_measured == pytest.approx(100, rel=0.1)
    assert found.ms > found.unlimited + 90
    assert found.predicted is not None
    assert found.predicted > found.unlimited + 90
    assert found.timed == ("resnet8, batch 4" if kind else "exchange")
    assert "latency by a relay in user space" in capsys.readouterr().out


@pytest.mark.slow
@needs_root
def test_a_network_and_its_relay_are_removed_after_an_error():
    before = children()

    def interrupted() -> None:
        with namespaces.network(2) as net, relay.delayed(net, 0.01):
            made.append(net)
            assert net.bridge in namespaces._names()
            assert children() > before
            raise KeyboardInterrupt

    made: list[Network] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    left = namespaces._names()
    assert made[0].bridge not in left
    assert made[0].namespace(1) not in left
    assert children() == before


@pytest.mark.slow
@needs_root
def test_a_command_runs_on_every_host_and_the_first_failure_counts(capfd):
    fails = 'echo "host $JAXCOMP_PROCESS of $JAXCOMP_PROCESSES" && '
    fails += "test $JAXCOMP_PROCESS = 0 && sleep 60 || exit 3"
    assert on_hosts.main(["--hosts=2", "--rate=100", "--", "sh", "-c", fails]) == 3
    shown = capfd.readouterr()
    assert "host 0 of 2" in shown.out
    assert "host 1 of 2" in shown.err
    assert "process 1 ended with code 3" in shown.err
    assert on_hosts.main(["--hosts=2", "--", "true"]) == 0


def test_scaling_counts_what_more_workers_send():
    """By the model, and on less data: the tables of docs/scaling.md."""
    dense, _, light = scaling.METHODS[:3]
    for workers in (4, 200):
        (exact,) = scaling.traced(dense, workers, 0.05)
        (gather,) = scaling.traced(light, workers, 0.05)
        assert exact.kind == "all-reduce"
        assert exact.nbytes == 4 * trees.elements(trees.resnet50(0.05))
        assert (gather.kind, gather.workers) == ("all-gather", workers)
        assert 0 < gather.nbytes < exact.nbytes / 500


@pytest.mark.slow
def test_the_committed_scaling_is_what_the_program_gives(tmp_path):
    scaling.main([f"--out={tmp_path}"])
    found = (tmp_path / "scaling.csv").read_text()
    assert found == (MEASURED / "scaling.csv").read_text()


def test_the_model_gives_the_predictions_that_are_committed():
    """A change of the model has to be compared with what was measured."""
    rows = network_report.read(MEASURED / "network.csv")
    ours = [row for row in rows if row.predicted is not None]
    assert {row.rate for row in ours} >= set(network.RATES)
    for row in ours:
        assert row.predicted == pytest.approx(network_report.predicted(row), rel=1e-3)
    for row in network_report.shown(ours):
        assert row.predicted == pytest.approx(row.ms, rel=0.25), row


# --- The relay that delays frames ----------------------------------------------------

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
def test_small_messages_over_gloo_take_two_latencies_each(capsys):
    """More than one for each of the 2, 6 and 1 messages; other load only adds."""
    words = ["--workers", "2", "--latency", "50", "--repeats", "3"]
    found = rounds.main(words)
    assert found.keys() == {(name, 2) for name in rounds.COLLECTIVES}
    assert found["all-reduce", 2] > 2.5
    assert found["all-reduce of three", 2] > 7.5
    assert found["permute", 2] > 1.25
    assert "latencies, by the model 12" in capsys.readouterr().out
