"""Gossip with all workers as rows of one matrix, in NumPy and float64."""

from collections.abc import Callable

import numpy as np

Rows = np.ndarray  # [workers, elements]
# (step, rows) -> what each worker's message decodes to
Lossy = Callable[[int, Rows], Rows]
Gradient = Callable[[Rows], Rows]


def descend(gradient: Gradient, x: Rows, buffer: Rows, rate: float, beta: float):
    """The local update of SGD with momentum, and its new buffer."""
    buffer = beta * buffer + gradient(x)
    return -rate * buffer, buffer


def d_psgd(w, x, updates, lossy, steps):
    for _t in range(steps):
        x = w @ (x + updates(x))
        yield x


def choco(w, x, updates, lossy, steps, gamma=0.5):
    public = x.copy()
    for t in range(steps):
        x = x + updates(x)
        public = public + lossy(t, x - public)
        x = x + gamma * (w @ public - public)
        yield x


def choco_overlapped(w, x, updates, lossy, steps, gamma=0.5):
    """In the order of the original code: mix first, then send for the next step."""
    public = x.copy()
    for t in range(steps):
        x = x + updates(x)
        x = x + gamma * (w @ public - public)
        public = public + lossy(t, x - public)
        yield x


def dcd_psgd(w, x, updates, lossy, steps):
    for t in range(steps):
        target = w @ x + updates(x)
        x = x + lossy(t, target - x)
        yield x


def ecd_psgd(w, x, updates, lossy, steps):
    public = x.copy()
    for t in range(1, steps + 1):
        new = w @ public + updates(x)
        overshot = (1 - t / 2) * x + (t / 2) * new
        public = (1 - 2 / t) * public + (2 / t) * lossy(t - 1, overshot)
        x = new
        yield x


def deep_squeeze(w, x, updates, lossy, steps, gamma=0.1):
    error = np.zeros_like(x)
    for t in range(steps):
        x = x + updates(x)
        said = lossy(t, x + error)
        error = x + error - said
        x = x + gamma * (w @ said - said)
        yield x


def delayed_sgd(w, x, updates, lossy, steps):
    server = x[0].copy()
    for t in range(steps):
        arrived = lossy(t, updates(x))
        x = x.copy()
        for worker, update in enumerate(arrived):
            server = server + update / len(x)
            x[worker] = server
        yield x


def stale_hypercube(w, x, updates, lossy, steps):
    count = len(x)
    table = [{} for _ in x]  # of each worker: worker -> (step, update)
    for t in range(steps):
        own = updates(x)
        for worker in range(count):
            table[worker][worker] = (t, own[worker])
        bit = 1 << (t % (count.bit_length() - 1))
        before = [dict(entries) for entries in table]
        for worker in range(count):
            for of, (stamp, update) in before[worker ^ bit].items():
                if of not in table[worker] or table[worker][of][0] < stamp:
                    table[worker][of] = (stamp, update)
        means = [np.mean([u for _, u in e.values()], axis=0) for e in table]
        x = x + np.stack(means)
        yield x
