"""From a config to one optax chain: the whole method, read left to right."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import optax

from jaxcomp import memory, optimizers
from jaxcomp.base import Exchange, Mixer
from jaxcomp.errors import UserError
from jaxcomp.specs import Call, Positive, Range, argument, build, parse, publish
from jaxcomp.training.momenta import check_one_momentum, of_memory
from jaxcomp.training.nodes import mean_of_node, nodes_of
from jaxcomp.training.stages import Stage
from jaxcomp.transform import distributed, mixing

__all__ = ["REGISTRY", "Setting", "chained", "make_links"]


BelowOne = Annotated[float, Range(least=0, below=1)]


class Setting(NamedTuple):
    """What a run gives to every optimiser."""

    rate: optax.Schedule
    weight_decay: float = 0.0
    dense_steps: int = 0  # first steps at which everything is sent
    given: Call | None = None  # the memory that gives a momentum, if one does


def sgd(
    setting: Setting, momentum: BelowOne = 0.9, nesterov: bool = True
) -> optax.GradientTransformation:
    """SGD with (Nesterov) momentum on the mean gradient."""
    return optax.chain(
        optax.add_decayed_weights(setting.weight_decay),
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        optimizers.scale_by_rate(setting.rate),
    )


def adam(
    setting: Setting, b1: BelowOne = 0.9, b2: BelowOne = 0.999, eps: Positive = 1e-8
) -> optax.GradientTransformation:
    """Adam on the mean gradient."""
    return optax.chain(
        optax.add_decayed_weights(setting.weight_decay),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optimizers.scale_by_rate(setting.rate),
    )


def dgc_sgd(
    setting: Setting, momentum: BelowOne = 0.9, nesterov: bool = False
) -> optax.GradientTransformation:
    """SGD after memory `dgc`: the momentum sees the weight decay and nothing else."""
    return optax.chain(
        optimizers.add_decayed_momentum(setting.weight_decay, momentum, nesterov),
        optimizers.scale_by_rate(setting.rate),
    )


def one_bit_adam(
    setting: Setting, b2: BelowOne = 0.999, eps: Positive = 1e-8
) -> optax.GradientTransformation:
    """Adam after memory `shared_momentum`, which learns its variance while dense."""
    assert setting.given is not None  # `check_one_momentum` saw to it
    beta = argument(setting.given, memory.shared_momentum, "beta", given=1)
    if beta == 1:
        raise UserError("divides by 1 - beta, and the memory has beta=1")
    if not setting.dense_steps:
        message = (
            "learns its variance in dense first steps. Set dense_for, for example to "
            "'1 epoch'"
        )
        raise UserError(message)
    return optax.chain(
        optimizers.scale_by_one_bit_adam(setting.dense_steps, beta, b2, eps),
        optax.add_decayed_weights(setting.weight_decay),
        optimizers.scale_by_rate(setting.rate),
    )


REGISTRY: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": adam,
    "dgc_sgd": dgc_sgd,
    "one_bit_adam": one_bit_adam,
    "sgd": sgd,
}
publish(optimizer=REGISTRY)


def make_links(
    config: Any, stage: Stage, setting: Setting, method: Exchange | Mixer
) -> list[optax.GradientTransformation]:
    """The links of the whole method as one optax chain; `chained` joins them.

    clip (local) -> exchange -> weight decay -> optimiser, for an exchange of gradients.
    Weight decay comes after it: it is the same on every worker, so sending it, or
    keeping it in a residual, would only spend bytes on what all know.

    clip -> weight decay -> optimiser -> mixer, where each worker has its own model; of
    the mean gradient of its node, where that has several devices.

    Args:
      config: names clipping, memory and optimiser.
      stage: what is sent; all stages of a run have chains with the same state.
      setting: rate, weight decay and dense steps.
      method: of the stage.
    """
    named = parse(config.optimizer)
    given = None if isinstance(method, Mixer) else of_memory(method.momentum)
    if isinstance(named, Call) and named.name in REGISTRY:
        check_one_momentum(given, named, REGISTRY[named.name])
    setting = setting._replace(given=given)
    optimizer = build(config.optimizer, REGISTRY, "optimizer", setting)
    if isinstance(method, Mixer):
        links = [optimizer, mixing(method, phase=stage.phase)]
    else:
        links = [distributed(method), optimizer]
    if config.clip_norm:
        links.insert(0, optax.clip_by_global_norm(config.clip_norm))
    if config.devices_per_node > 1:
        links.insert(0, mean_of_node(nodes_of(config, method.axis)))
    return links


def chained(
    links: list[optax.GradientTransformation],
) -> optax.GradientTransformationExtraArgs:
    """The links as one optax chain, which passes the key of a step on."""
    return optax.with_extra_args_support(optax.chain(*links))
