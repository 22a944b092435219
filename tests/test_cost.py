"""The model of an exchange's cost gives what is computed by hand."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from jaxcomp.wire import Collective, cost
from jaxcomp.wire.cost import Cost, Link

MESSAGE = 1000  # bytes


def of(kind: str, link: Link, workers: int = 4, **options) -> Cost:
    return cost.cost([Collective(kind, MESSAGE, workers)], link, **options)


@pytest.mark.parametrize(
    ("kind", "nbytes", "rounds"),
    [
        ("all-reduce", 1500, 6),
        ("all-gather", 3000, 3),
        ("reduce-scatter", 750, 3),
        ("all-to-all", 750, 3),
        ("collective-permute", 1000, 1),
        ("collective-broadcast", 1000, 3),
    ],
)
def test_each_collective_by_hand(kind, nbytes, rounds):
    """Of four workers that hand over 1,000 bytes each, at 1 MB/s and 2 ms."""
    found = of(kind, Link(1e6, 2e-3), local=0.25)
    assert (found.nbytes, found.rounds) == (nbytes, rounds)
    assert found.transfer == pytest.approx(nbytes / 1e6)
    assert found.waiting == pytest.approx(rounds * 2e-3)
    assert found.seconds == pytest.approx(nbytes / 1e6 + rounds * 2e-3 + 0.25)


def test_collectives_add_up():
    found = [Collective("all-gather", 10, 2, times=5), Collective("all-reduce", 7, 2)]
    assert cost.cost(found, Link(1.0)) == Cost(57, 0, 0, 57, 7)
    assert cost.cost([], Link(1.0), local=2.0).seconds == 2.0


def test_a_message_that_waits_for_its_receiver_takes_two_latencies():
    """And each tensor by itself, if they do not travel together."""
    found = [Collective("all-reduce", 9, 4, times=2, tensors=3)]
    assert cost.cost(found, Link(1.0, 1.0)).rounds == 12
    gloo = Link(1.0, 1.0, trips=2, together=False)
    whole = cost.cost(found, gloo)
    assert (whole.rounds, whole.waiting) == (36, 72)
    assert whole.transfer == cost.cost(found, Link(1.0)).transfer
    inside = cost.cost(found, Link(1.0), per_host=4, inside=gloo)
    assert (inside.rounds, inside.waiting) == (0, 72)


def test_workers_of_one_host_share_its_link():
    """Two hosts of two: one ring leaves a host once, two groups leave it twice."""
    link, inside = Link(1.0), Link(100.0, 1.0)
    everybody = Collective("all-gather", 10, 4, groups=((0, 1, 2, 3),))
    across = Collective("all-gather", 10, 2, groups=((0, 2), (1, 3)))
    within = Collective("all-gather", 10, 2, groups=((0, 1), (2, 3)))
    options = {"per_host": 2, "inside": inside}
    assert cost.cost([everybody], link, **options).nbytes == 30
    assert cost.cost([across], link, **options).nbytes == 20
    assert cost.cost([within], link, **options) == Cost(0.1, 1.0, 0, 0, 0)
    assert cost.cost([within], link, per_host=2).seconds == 0, "free by default"


@pytest.mark.parametrize(
    ("kind", "workers", "times_longer"),
    [
        ("all-to-all", 4, 2),
        ("all-to-all", 2, 2),
        ("all-gather", 4, 1),
        ("all-gather", 2, 1.25),
        ("all-reduce", 2, 1),
        ("collective-permute", 3, 1),
        ("collective-permute", 2, 2),
    ],
)
def test_pairs_that_take_turns(kind, workers, times_longer):
    """As measured over Gloo, with 2 and with 4 hosts at 100 Mbit/s."""
    turns, both = Link(1e6, duplex=False), Link(1e6)
    slow, quick = of(kind, turns, workers), of(kind, both, workers)
    assert slow.transfer == pytest.approx(times_longer * quick.transfer)
    assert slow.nbytes == quick.nbytes


def test_workers_that_swap_take_turns():
    turns = Link(1e6, duplex=False)
    shifted = Collective("collective-permute", 12, 3, groups=((0, 1), (1, 2), (2, 0)))
    swapped = shifted._replace(groups=((0, 1), (1, 0)))
    to_itself = shifted._replace(groups=((0, 0), (1, 2)))
    factors = [
        cost.cost([each], turns).transfer / cost.cost([each], Link(1e6)).transfer
        for each in (shifted, swapped, to_itself)
    ]
    assert factors == [1, 2, 1]


def test_bandwidth_for_a_share_is_where_it_is_reached():
    found = [Collective("all-to-all", 10**6, 4), Collective("all-reduce", 4, 4)]
    link = Link(1.0, latency=1e-4, duplex=False)
    for share in (0.5, 0.75, 0.9):
        needed = cost.bandwidth_for(share, 0.3, found, link, local=0.01)
        there = link._replace(bandwidth=needed)
        whole = cost.cost(found, there, local=0.01).seconds
        assert cost.utilisation(0.3, whole) == pytest.approx(share)
    assert cost.bandwidth_for(0.99, 0.3, found, link, local=0.01) == math.inf


def test_break_even_is_where_both_take_as_long():
    few, many = [Collective("all-to-all", 10, 4)], [Collective("all-reduce", 9000, 4)]
    link = Link(7.0, duplex=False)
    slow = cost.cost(few, link, local=0.5)
    bandwidth = cost.break_even(slow, cost.cost(many, link, local=0.1), 7.0)
    there = link._replace(bandwidth=bandwidth)
    both = [
        cost.cost(found, there, local=local).seconds
        for found, local in ((few, 0.5), (many, 0.1))
    ]
    assert both[0] == pytest.approx(both[1])
    free = Cost(10, 0, 0, 10, 0)
    assert cost.break_even(free, Cost(20, 0, 0, 20, 0), 1.0) == math.inf
    assert cost.break_even(free, free._replace(local=1), 1.0) == math.inf
    assert cost.break_even(free._replace(local=1), free, 1.0) == 0


def test_what_cannot_be_is_refused():
    for link in (Link(0.0), Link(math.nan), Link(1.0, -1.0)):
        with pytest.raises(ValueError, match=re.escape(str(link))):
            cost.cost([], link)
    refused: list[dict[str, Any]] = [{"local": -2.0}, {"per_host": 0}]
    for options in refused:
        with pytest.raises(ValueError, match=f"{[*options.values()][0]}"):
            cost.cost([], Link(1.0), **options)
    with pytest.raises(ValueError, match="between 0 and 1, not 1"):
        cost.bandwidth_for(1, 1.0, [])


def test_the_program_of_the_document_runs(capsys):
    text = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(program, {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["4", "1000"]
