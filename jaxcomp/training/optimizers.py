"""From a config to one optax chain: the whole method, read left to right."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import optax

from jaxcomp import memory, optimizers
from jaxcomp.base import Exchange, Mixer
from jaxcomp.errors import UserError
from jaxcomp.specs import Call, Positive, Range, argument, build, parse, publish
from jaxcomp.training import clips
from jaxcomp.training.decay import add_decay, decaying
from jaxcomp.training.momenta import check_one_momentum, of_memory
from jaxcomp.training.nodes import mean_of_node, nodes_of
from jaxcomp.training.stages import Stage
from jaxcomp.training.trust import KERNELS, add_decay_with_trust, scale_by_trust
from jaxcomp.transform import distributed, mixing

__all__ = ["REGISTRY", "Setting", "chained", "make_links"]


_AFTER_DIVISION = "adds its decay after the division by the variance's root"
BelowOne = Annotated[float, Range(least=0, below=1)]


class Setting(NamedTuple):
    """What a run gives to every optimiser."""

    rate: optax.Schedule
    weight_decay: float = 0.0
    dense_steps: int = 0  # first steps at which everything is sent
    given: Call | None = None  # the memory that gives a momentum, if one does
    decay: str = "all"  # which parameters decay
    decay_at: str = "update"  # or in the gradient: then optimisers add none

    def decay_in_update(self) -> optax.GradientTransformation:
        """The link of an optimiser that adds decay to the mean gradient."""
        at_update = self.decay_at == "update"
        return add_decay(self.weight_decay if at_update else 0.0, self.decay)

    def check_decay_apart(self, why: str) -> None:
        """Refuse decay in the gradient, for an optimiser that has to tell them apart.

        Args:
          why: it has to.
        """
        if self.decay_at == "gradient":
            message = f"{why}: set decay_at to 'update', not 'gradient'"
            raise UserError(message)


def sgd(
    setting: Setting, momentum: BelowOne = 0.9, nesterov: bool = True
) -> optax.GradientTransformation:
    """SGD with (Nesterov) momentum on the mean gradient."""
    return optax.chain(
        setting.decay_in_update(),
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        optimizers.scale_by_rate(setting.rate),
    )


def adam(
    setting: Setting, b1: BelowOne = 0.9, b2: BelowOne = 0.999, eps: Positive = 1e-8
) -> optax.GradientTransformation:
    """Adam on the mean gradient."""
    return optax.chain(
        setting.decay_in_update(),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optimizers.scale_by_rate(setting.rate),
    )


def adamw(
    setting: Setting, b1: BelowOne = 0.9, b2: BelowOne = 0.999, eps: Positive = 1e-8
) -> optax.GradientTransformation:
    """Adam whose weight decay is not divided by the root of the variance.

    References:
      Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101,
      2019.
    """
    setting.check_decay_apart(_AFTER_DIVISION)
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        setting.decay_in_update(),
        optimizers.scale_by_rate(setting.rate),
    )


def lamb(
    setting: Setting,
    b1: BelowOne = 0.9,
    b2: BelowOne = 0.999,
    eps: Positive = 1e-6,
    adapt: str = KERNELS,
) -> optax.GradientTransformation:
    """Adam with decay, each tensor's step as long as the tensor: |w| u / |u|.

    References:
      You et al., Large Batch Optimization for Deep Learning: Training BERT in 76
      minutes, arXiv:1904.00962, 2020.
    """
    setting.check_decay_apart(_AFTER_DIVISION)
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        setting.decay_in_update(),
        scale_by_trust(adapt),
        optimizers.scale_by_rate(setting.rate),
    )


def lars(
    setting: Setting,
    momentum: BelowOne = 0.9,
    nesterov: bool = False,
    trust: Positive = 0.001,
    adapt: str = KERNELS,
) -> optax.GradientTransformation:
    """SGD in which each tensor has a rate of its own, from its length.

        v <- momentum v + r (g + decay w),  r = trust |w| / (|g| + decay |w|)

    References:
      You et al., Large Batch Training of Convolutional Networks, arXiv:1708.03888,
      2017. There the learning rate is inside the momentum; it is the same where the
      rate is constant.
    """
    setting.check_decay_apart("divides by |gradient| + decay |weights|")
    link = add_decay_with_trust(
        setting.weight_decay,
        functools.partial(decaying, setting.decay),
        trust,
        adapt,
    )
    return optax.chain(
        link,
        # By another name than that of `sgd`: it is as short as `trust` makes it.
        optax.named_chain(("adapted", optax.trace(momentum, nesterov))),
        optimizers.scale_by_rate(setting.rate),
    )


def dgc_sgd(
    setting: Setting, momentum: BelowOne = 0.9, nesterov: bool = False
) -> optax.GradientTransformation:
    """SGD after memory `dgc`: the momentum sees the weight decay and nothing else."""
    at_update = setting.decay_at == "update"
    return optax.chain(
        optimizers.add_decayed_momentum(
            setting.weight_decay if at_update else 0.0,
            momentum,
            nesterov,
            mask=functools.partial(decaying, setting.decay),
        ),
        optimizers.scale_by_rate(setting.rate),
    )


def one_bit_adam(
    setting: Setting, b2: BelowOne = 0.999, eps: Positive = 1e-8
) -> optax.GradientTransformation:
    """Adam after memory `shared_momentum`, which learns its variance while dense."""
    assert setting.given is not None  # `check_one_momentum` saw to it
    setting.check_decay_apart(_AFTER_DIVISION)
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
        setting.decay_in_update(),
        optimizers.scale_by_rate(setting.rate),
    )


REGISTRY: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": adam,
    "adamw": adamw,
    "dgc_sgd": dgc_sgd,
    "lamb": lamb,
    "lars": lars,
    "one_bit_adam": one_bit_adam,
    "sgd": sgd,
}
publish(optimizer=REGISTRY)


def make_links(
    config: Any, stage: Stage, setting: Setting, method: Exchange | Mixer
) -> list[optax.GradientTransformation]:
    """The links of the whole method as one optax chain; `chained` joins them.

    clip -> exchange -> optimiser with weight decay, for an exchange of
    gradients. Decay is the same on every worker, so sending it, or keeping it in a
    residual, would only spend bytes on what all know. With `decay_at="gradient"` it is
    sent all the same, as published systems do: clip -> decay -> exchange -> optimiser.

    clip -> optimiser with weight decay -> mixer, where each worker has its own model.
    All of it is of the mean gradient of a node, where that has several devices.

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
    if setting.decay_at == "gradient":
        links.insert(0, add_decay(setting.weight_decay, setting.decay))
    links = [*clips.make(config.clip, method.axis, config.memory, config.mixer), *links]
    if config.devices_per_node > 1:
        links.insert(0, mean_of_node(nodes_of(config, method.axis)))
    return links


def chained(
    links: list[optax.GradientTransformation],
) -> optax.GradientTransformationExtraArgs:
    """The links as one optax chain, which passes the key of a step on."""
    return optax.with_extra_args_support(optax.chain(*links))
