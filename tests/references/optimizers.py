"""Distributed optimisers as their papers write them, worker by worker.

Each takes the gradients, [steps, workers, elements], the weights at the start, a rate
and a weight decay, and returns the weights after each step.
"""

from collections.abc import Callable

import numpy as np

Path = list[np.ndarray]


def sign_of(x: np.ndarray) -> np.ndarray:
    """Two symbols: zero counts as positive."""
    return np.where(x < 0, -1, 1)


def scaled_sign(x: np.ndarray) -> np.ndarray:
    """Signs times the mean magnitude, of each row."""
    return np.abs(x).mean(axis=1, keepdims=True) * sign_of(x)


def ef_signsgd(grads: np.ndarray, w: np.ndarray, rate: float, decay: float) -> Path:
    """Karimireddy et al., arXiv:1901.09847, with one error for each worker."""
    path, errors = [], np.zeros(grads[0].shape)
    for grad in grads:
        given = grad + errors
        sent = scaled_sign(given)
        errors = given - sent
        w = w - rate * (sent.mean(axis=0) + decay * w)
        path.append(w)
    return path


def signum(
    grads: np.ndarray, w: np.ndarray, rate: float, decay: float, beta: float = 0.9
) -> Path:
    """Bernstein et al., arXiv:1802.04434, with a majority vote."""
    path, m = [], np.zeros(grads[0].shape, np.float32)
    for grad in grads:
        m = np.float32(beta) * m + np.float32(1 - beta) * grad
        w = w - rate * (np.sign(sign_of(m).sum(axis=0)) + decay * w)
        path.append(w)
    return path


def lion(
    grads: np.ndarray,
    w: np.ndarray,
    rate: float,
    decay: float,
    b1: float = 0.9,
    b2: float = 0.99,
) -> Path:
    """Liu et al., arXiv:2404.00438, with a majority vote."""
    path, m = [], np.zeros(grads[0].shape, np.float32)
    for grad in grads:
        votes = sign_of(np.float32(b1) * m + np.float32(1 - b1) * grad)
        m = np.float32(b2) * m + np.float32(1 - b2) * grad
        w = w - rate * (np.sign(votes.sum(axis=0)) + decay * w)
        path.append(w)
    return path


def one_bit_adam(
    grads: np.ndarray,
    w: np.ndarray,
    rate: float,
    decay: float,
    dense_steps: int,
    b1: float = 0.9,
    b2: float = 0.999,
) -> Path:
    """Tang et al., arXiv:2102.02888, with bias corrections and decoupled decay."""
    path, m, v = [], np.zeros(w.shape), np.zeros(w.shape)
    errors = np.zeros(grads[0].shape)
    for i, grad in enumerate(grads):
        given = b1 * m + (1 - b1) * grad + errors
        if i < dense_steps:
            sent = given
            v = b2 * v + (1 - b2) * np.square(grad.mean(axis=0))
        else:
            sent = scaled_sign(given)
        errors = given - sent
        m = sent.mean(axis=0)
        unbiased_m = m / (1 - b1 ** (i + 1))
        unbiased_v = v / (1 - b2 ** min(i + 1, dense_steps))
        w = w - rate * (unbiased_m / (np.sqrt(unbiased_v) + 1e-8) + decay * w)
        path.append(w)
    return path


def dgc_sgd(
    grads: np.ndarray,
    w: np.ndarray,
    rate: float,
    decay: float,
    compress: Callable[[np.ndarray], np.ndarray],
    momentum: float = 0.9,
    nesterov: bool = False,
) -> Path:
    """Lin et al., arXiv:1712.01887; what is sent is masked out of both."""
    path, u, v = [], np.zeros(grads[0].shape), np.zeros(grads[0].shape)
    buffer = np.zeros(w.shape)
    for grad in grads:
        u = momentum * (u + grad) if nesterov else momentum * u + grad
        v = v + u + (grad if nesterov else 0)
        sent = np.stack([compress(row) for row in v])
        v, u = v - sent, np.where(sent != 0, 0, u)
        buffer = momentum * buffer + decay * w
        own = momentum * buffer + decay * w if nesterov else buffer
        w = w - rate * (sent.mean(axis=0) + own)
        path.append(w)
    return path


Model = dict[str, np.ndarray]


def adamw(
    grads: list[Model], w: Model, rate: float, decay: dict[str, float]
) -> list[Model]:
    """Loshchilov and Hutter, arXiv:1711.05101, algorithm 2 with a constant rate."""
    path = []
    for directions in _adam(grads, w, 1e-8):
        w = {k: w[k] - rate * (directions[k] + decay[k] * w[k]) for k in w}
        path.append(w)
    return path


def lamb(
    grads: list[Model], w: Model, rate: float, decay: dict[str, float]
) -> list[Model]:
    """You et al., arXiv:1904.00962, algorithm 2; vectors are not adapted."""
    path = []
    for directions in _adam(grads, w, 1e-6):
        steps = {k: directions[k] + decay[k] * w[k] for k in w}
        ratios = {k: _length(w[k]) / _length(steps[k]) for k in w if w[k].ndim > 1}
        w = {k: w[k] - rate * ratios.get(k, 1.0) * steps[k] for k in w}
        path.append(w)
    return path


def lars(
    grads: list[Model],
    w: Model,
    rate: float,
    decay: dict[str, float],
    trust: float,
    momentum: float = 0.9,
) -> list[Model]:
    """You et al., arXiv:1708.03888, algorithm 1; vectors are not adapted."""
    path, v = [], {k: np.zeros_like(x) for k, x in w.items()}
    for grad in grads:
        for k, g in grad.items():
            below = _length(g) + decay[k] * _length(w[k])
            ratio = trust * _length(w[k]) / below if w[k].ndim > 1 else 1.0
            v[k] = momentum * v[k] + rate * ratio * (g + decay[k] * w[k])
        w = {k: w[k] - v[k] for k in w}
        path.append(w)
    return path


def _adam(grads: list[Model], w: Model, eps: float) -> list[Model]:
    """The direction of Adam at each step, which does not depend on the weights."""
    b1, b2, path = 0.9, 0.999, []
    m = {k: np.zeros_like(x) for k, x in w.items()}
    v = {k: np.zeros_like(x) for k, x in w.items()}
    for t, grad in enumerate(grads, start=1):
        m = {k: b1 * m[k] + (1 - b1) * g for k, g in grad.items()}
        v = {k: b2 * v[k] + (1 - b2) * g**2 for k, g in grad.items()}
        path.append(
            {k: m[k] / (1 - b1**t) / (np.sqrt(v[k] / (1 - b2**t)) + eps) for k in w}
        )
    return path


def _length(x: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.square(x))))
