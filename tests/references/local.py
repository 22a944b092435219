"""Rounds of local training with all workers as rows of one matrix, in NumPy."""

import numpy as np


def diloco(x, updates, steps, h, rate=1.0, momentum=0.0, parts=None):
    """Yields the models after each step; local SGD with rate 1 and no momentum.

    Args:
      x: [workers, elements], all alike.
      updates: models -> what each worker adds to its own.
      steps: to run.
      h: of a round.
      rate: of the outer step.
      momentum: likewise.
      parts: slices of the elements, synchronised one after the other in a round.
    """
    parts = parts or [slice(None)]
    anchor, buffer = x[0].copy(), np.zeros_like(x[0])
    due = [(i + 1) * h // len(parts) for i in range(len(parts))]
    for t in range(steps):
        x = x + updates(x)
        for part, when in zip(parts, due, strict=True):
            if t % h == when - 1:
                learnt = (anchor - x)[:, part].mean(axis=0)
                buffer[part] = momentum * buffer[part] + learnt
                anchor[part] -= rate * (learnt + momentum * buffer[part])
                x[:, part] = anchor[part]
        yield x.copy()


def sparse_loco(x, updates, steps, h, keep, rate=1.0, decay=0.95):
    """With the `keep` largest elements of each worker, and the rest kept for later."""
    anchor, error = x[0].copy(), np.zeros_like(x)
    for t in range(steps):
        x = x + updates(x)
        if t % h == h - 1:
            given = decay * error + (anchor - x)
            largest = np.argsort(-np.abs(given), axis=1)[:, :keep]
            sent = np.zeros_like(given)
            rows = np.arange(len(x))[:, None]
            sent[rows, largest] = given[rows, largest]
            error = given - sent
            anchor = anchor - rate * sent.mean(axis=0)
            x = np.broadcast_to(anchor, x.shape).copy()
        yield x.copy()
