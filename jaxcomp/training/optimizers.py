"""From a config to one optax chain: the whole method, read left to right."""

from collections.abc import Callable
from typing import Any

import optax

from jaxcomp.specs import build
from jaxcomp.transform import distributed, make_exchange

__all__ = ["REGISTRY", "make_chain"]


def sgd(
    rate: optax.Schedule, momentum: float = 0.9, nesterov: bool = True
) -> optax.GradientTransformation:
    """SGD with (Nesterov) momentum on the mean gradient."""
    return optax.sgd(rate, momentum=momentum or None, nesterov=nesterov)


def adam(
    rate: optax.Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam on the mean gradient."""
    return optax.adam(rate, b1=b1, b2=b2, eps=eps)


REGISTRY: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": adam,
    "sgd": sgd,
}


def make_chain(
    config: Any, rate: optax.Schedule, axis: str
) -> optax.GradientTransformationExtraArgs:
    """clip (local) -> exchange -> weight decay -> optimiser.

    Weight decay comes after the exchange: it is the same on every worker, so sending
    it, or keeping it in a residual, would only spend bytes on what all know.
    """
    exchange = make_exchange(
        config.exchange, config.compressor, config.memory, config.scope, axis
    )
    links: list[optax.GradientTransformation] = [
        distributed(exchange),
        optax.add_decayed_weights(config.weight_decay),
        build(config.optimizer, REGISTRY, "optimizer", rate),
    ]
    if config.clip_norm:
        links.insert(0, optax.clip_by_global_norm(config.clip_norm))
    return optax.with_extra_args_support(optax.chain(*links))
