"""Predict how long an exchange takes on links of a given speed.

The messages come from the program itself: `wire.collectives` of a compiled one, or
`wire.traced_collectives`, which needs neither devices nor a compiler and so answers for
any number of workers. Each collective is taken to run as the usual ring or pairwise
algorithm, one after the other, and each host sends and receives over one link:

    seconds = bytes that leave the host / bandwidth + rounds x latency + local time

| collective | bytes that leave a worker | rounds |
|---|---|---|
| all-reduce | 2 (N-1)/N n | 2 (N-1) |
| all-gather | (N-1) n | N-1 |
| reduce-scatter, all-to-all | (N-1)/N n | N-1 |
| permute | n | 1 |
| broadcast | n | N-1 |

n are the bytes that one worker hands over, and N is the number of workers. Where two
workers do not send to each other at the same time, as over Gloo, an all-to-all takes
twice as long (`Link.duplex`). Gloo's messages also take two latencies each
(`Link.trips`), and each tensor is a message (`Link.together`). The local time is
whatever the program does besides: it has to be measured.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from jaxcomp.wire.bytes import PAIRWISE, Collective, link_bytes
from jaxcomp.wire.program import KINDS

# Messages that a worker waits for one after the other, in a group of n. Each round of a
# ring waits for its slowest edge, so with several workers on a host all rounds count.
_ROUNDS = {
    "all-reduce": lambda n: 2 * (n - 1),
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: n - 1,
    "all-to-all": lambda n: n - 1,
    "ragged-all-to-all": lambda n: n - 1,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: n - 1,
}


class Link(NamedTuple):
    """What connects a host to the others."""

    bandwidth: float  # bytes a second, in each direction
    latency: float = 0.0  # seconds from the sender to the receiver
    # Whether two workers send to each other at the same time. Gloo's take turns: "I am
    # ready to receive" waits in the same connection behind what the worker sends.
    duplex: bool = True
    # Latencies that a message takes: 2 where it waits for a word of its receiver, as
    # over Gloo, which sends nothing before somebody is ready to receive it.
    trips: int = 1
    # Whether the tensors of one collective travel as one message. XLA on CPUs hands
    # those of a combined all-reduce to Gloo one after the other.
    together: bool = True


class Cost(NamedTuple):
    """What one exchange takes, in seconds unless another unit is named."""

    transfer: float  # bytes through links
    waiting: float  # rounds x latency
    local: float  # everything that is no message
    nbytes: float  # that leave one host
    rounds: int  # between hosts

    @property
    def seconds(self) -> float:
        """All of it, if nothing overlaps."""
        return self.transfer + self.waiting + self.local


def cost(
    collectives: Iterable[Collective],
    link: Link,
    *,
    local: float = 0.0,
    per_host: int = 1,
    inside: Link | None = None,
) -> Cost:
    """The cost of one exchange on one host.

    The workers of a host share its link, as `wire.link_bytes` counts what leaves it.

    Args:
      collectives: of one exchange, as `wire` reads them.
      link: between hosts.
      local: seconds of the exchange that are no message.
      per_host: workers of one host, which are neighbours in the order of devices.
      inside: between the workers of one host; default: without cost.

    Raises:
      ValueError: a bandwidth is not positive, or a latency or local time is negative.

    Example:
      >>> found = [Collective("all-gather", nbytes=1000, workers=4)]
      >>> cost(found, Link(bandwidth=1e6, latency=1e-3), local=0.5)
      Cost(transfer=0.003, waiting=0.003, local=0.5, nbytes=3000.0, rounds=3)
    """
    inside = inside or Link(math.inf)
    _check(link, inside, local, per_host)
    transfer = waiting = nbytes = 0.0
    rounds = 0
    for collective in collectives:
        leaving = link_bytes([collective], per_host)
        if leaving:
            nbytes += leaving
            steps = _rounds(collective, link)
            rounds += steps
            transfer += leaving * _turns(collective, link) / link.bandwidth
            waiting += steps * link.trips * link.latency
        else:
            theirs = KINDS[collective.kind](collective.workers) * collective.nbytes
            theirs *= collective.times * _turns(collective, inside)
            transfer += theirs / inside.bandwidth
            waiting += _rounds(collective, inside) * inside.trips * inside.latency
    return Cost(transfer, waiting, local, nbytes, rounds)


def utilisation(compute: float, exchange: float) -> float:
    """The share of a step's time in which it computes, if nothing overlaps.

    Args:
      compute: seconds of forward and backward pass.
      exchange: seconds.

    Example:
      >>> utilisation(3.0, 1.0)
      0.75
    """
    return compute / (compute + exchange)


def bandwidth_for(
    share: float,
    compute: float,
    collectives: Iterable[Collective],
    link: Link = Link(1.0),  # noqa: B008  a constant
    *,
    local: float = 0.0,
    per_host: int = 1,
) -> float:
    """Bytes a second at which a step computes for this share of its time.

    Solves `utilisation(compute, cost(...).seconds) = share` for the bandwidth.

    Args:
      share: more than 0 and less than 1.
      compute: seconds of forward and backward pass.
      collectives: of one exchange.
      link: like the one that is looked for, in all but its bandwidth.
      local: as of `cost`.
      per_host: the same.

    Returns:
      Infinity where latency and local time alone take longer than the share allows.

    Example:
      >>> bandwidth_for(0.5, 2.0, [Collective("all-gather", 1000, 2)])
      500.0
    """
    if not 0 < share < 1:
        raise ValueError(f"a share is between 0 and 1, not {share}")
    found = cost(collectives, link, local=local, per_host=per_host)
    left = compute * (1 - share) / share - found.waiting - found.local
    return found.transfer * link.bandwidth / left if left > 0 else math.inf


def break_even(compressed: Cost, dense: Cost, bandwidth: float) -> float:
    """Bytes a second below which the compressed exchange is the faster one.

    Args:
      compressed: its cost on some link.
      dense: the cost of the other one on the same link.
      bandwidth: of that link.

    Returns:
      Infinity if it is faster on every link, and 0 if it is on none.

    Example:
      >>> compressed = Cost(transfer=1, waiting=0, local=5, nbytes=10, rounds=1)
      >>> dense = Cost(transfer=11, waiting=0, local=0, nbytes=110, rounds=1)
      >>> break_even(compressed, dense, bandwidth=10)
      20.0
    """
    saved = (dense.transfer - compressed.transfer) * bandwidth
    paid = compressed.waiting + compressed.local - dense.waiting - dense.local
    if saved <= 0:
        return math.inf if paid < 0 else 0.0
    return saved / paid if paid > 0 else math.inf


def _rounds(collective: Collective, link: Link) -> int:
    """Messages that a worker waits for one after the other."""
    parts = 1 if link.together else collective.tensors
    return _ROUNDS[collective.kind](collective.workers) * collective.times * parts


def _turns(collective: Collective, link: Link) -> float:
    """How many times longer messages travel because pairs of workers take turns.

    Of a ring of three or more, a worker sends to one neighbour and receives from the
    other one. Two gather in halves. The second half of one direction may travel beside
    the first half of the other one, or all halves do: 1.5 or 1, as chance will have it.
    """
    if link.duplex:
        return 1.0
    kind, size = collective.kind, collective.workers
    if kind == "all-gather" and size == 2:
        return 1.25
    return 2.0 if kind in PAIRWISE or _swaps(collective) else 1.0


def _swaps(collective: Collective) -> bool:
    """Whether a permutation sends from one worker to another one and back."""
    if collective.kind != "collective-permute":
        return False
    size = collective.workers
    pairs = {*(collective.groups or [(i, (i + 1) % size) for i in range(size)])}
    return any(s != t and (t, s) in pairs for s, t in pairs)


def _check(link: Link, inside: Link, local: float, per_host: int) -> None:
    for each in (link, inside):
        if not each.bandwidth > 0 or not each.latency >= 0:
            raise ValueError(f"a link has a positive bandwidth, not {each}")
    if not local >= 0:
        raise ValueError(f"local time is not negative: {local}")
    if per_host < 1:
        raise ValueError(f"a host has at least one worker, not {per_host}")
