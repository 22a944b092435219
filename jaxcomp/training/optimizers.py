"""Optimisers of a config: clipping, momentum, decay, and the chain."""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp import memory
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import (
    Call,
    Clip,
    Positive,
    Range,
    argument,
    build,
    calls,
    error_at,
    parse,
    publish,
)
from jaxcomp.core.trees import clipped, norm
from jaxcomp.core.types import Array, Axis, Exchange, Mixer, Tree
from jaxcomp.memory import dgc
from jaxcomp.mixers import gossip
from jaxcomp.parallel import collectives
from jaxcomp.parallel.collectives import Nodes
from jaxcomp.scope import leaves_of, which_fit
from jaxcomp.training.stages import Stage
from jaxcomp.transforms import optimizers
from jaxcomp.transforms.clipping import (
    clip_by_norm,
    clip_by_worker_norm,
    clip_values_by_worker_norm,
)
from jaxcomp.transforms.distributed import distributed, mixing


def node_count(config: Any) -> int:
    """How many models a run has: those of nodes, which are workers by default."""
    return config.workers // config.get("devices_per_node", 1)


def nodes_of(config: Any, axis: Axis) -> Axis:
    """The axis on which a mixer sees the nodes."""
    count = config.devices_per_node
    return axis if count == 1 else Nodes(axis, count)


def mean_of_node(nodes: Axis) -> optax.GradientTransformation:
    """The first link of a device: the mean of the gradients of its node.

    Args:
      nodes: from `nodes_of`. Where each device is a node, nothing changes.
    """
    if not isinstance(nodes, Nodes):
        return optax.identity()
    return optax.stateless(
        lambda updates, params: collectives.mean(updates, nodes.inside)
    )


def check_nodes(config: Any) -> None:
    """Refuse nodes of several devices where there is no gossip between them."""
    count = config.devices_per_node
    if count == 1:
        return
    call = parse(config.mixer) if config.mixer else None
    if not isinstance(call, Call) or call.name not in gossip.REGISTRY:
        raise UserError(
            f"devices_per_node={count} needs a mixer that gossips, such as "
            f"'choco(gamma=0.5)', and mixer is {config.mixer!r}. An exchange that is "
            "dense inside a host and compressed between hosts is "
            f"exchange='hierarchical(per_host={count})'"
        )
    for key, usual in (("workers_per_device", 1), ("elastic", False)):
        if config[key] != usual:
            message = f"devices_per_node={count} does not go together with {key}="
            raise UserError(f"{message}{config[key]}: set one of them to {usual}")
    if config.workers % count:
        nearest = count * max(1, round(config.workers / count))
        raise UserError(
            f"{config.workers} workers are no whole number of nodes of {count}: take "
            f"a multiple of {count}, such as {nearest}"
        )


# The arguments by which optimisers give a momentum to the gradient.
OF_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "lamb"), "b1"),
    **dict.fromkeys(("lars", "sgd"), "momentum"),
}
# Optimisers that go on with the momentum of a memory, and what has to be the same.
CONTINUED = {
    "dgc_sgd": ("dgc(momentum=0.9)", ("momentum", "nesterov")),
    "one_bit_adam": ("shared_momentum(beta=0.9) | error_feedback", ()),
}


def check_one_momentum(given: Call | None, optimizer: Call, factory: Any) -> None:
    """Refuse a second momentum, and an optimiser whose memory gives none.

    Args:
      given: the memory that gives a momentum, from `of_memory`.
      optimizer: of the config.
      factory: of the optimiser.

    Raises:
      SpecError: names both settings, and what would go together.
    """
    own = OF_OPTIMIZERS.get(optimizer.name)
    if own and given and argument(optimizer, factory, own, given=1):
        message = (
            f"two momenta, one after the other: memory {str(given)!r} gives one and "
            f"optimizer {str(optimizer)!r} another. Set optimizer to "
            f"'{optimizer.name}({own}=0)', or memory to one without"
        )
        raise error_at(optimizer, message)
    if optimizer.name not in CONTINUED:
        return
    example, alike = CONTINUED[optimizer.name]
    name = example.partition("(")[0]
    if given is None or given.name != name:
        found = "gives none" if given is None else f"is {str(given)!r}"
        message = (
            f"optimizer {str(optimizer)!r} goes on with the momentum of memory "
            f"{name!r}, and the memory {found}. Set memory to {example!r}, or "
            "optimizer to 'sgd(momentum=0.9)' if the memory gives none"
        )
        raise error_at(optimizer, message)
    for key in alike:
        here = argument(optimizer, factory, key, given=1)
        there = argument(given, memory.REGISTRY[name], key, given=1)
        if here != there:
            message = (
                f"memory {str(given)!r} and optimizer {str(optimizer)!r} have one "
                f"momentum together, and {key} is {there!r} and {here!r}: set it alike"
            )
            raise error_at(optimizer, message)


def of_memory(momentum: str | None) -> Call | None:
    """The memory that an exchange names as the one that gives a momentum.

    Example:
      >>> of_memory("dgc(momentum=0.5)").kwargs
      {'momentum': 0.5}
    """
    call = parse(momentum) if momentum else None
    assert call is None or isinstance(call, Call)
    return call


# Biases and the scales of normalisation layers have one axis.
_NAMED = {"all": "*", "kernels": "ndim>=2"}


def decaying(decay: str, params: Tree) -> Tree:
    """For each parameter, whether it decays.

    Args:
      decay: "all"; "kernels", which have two axes or more; or a pattern as in `policy`.
      params: of the model.

    Example:
      >>> import jax.numpy as jnp
      >>> decaying("kernels", {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})
      {'bias': False, 'kernel': True}
    """
    return which_fit(_NAMED.get(decay, decay), params)


def check_decay(config: Any, params: Tree) -> None:
    """Refuse a pattern that fits no parameter.

    Args:
      config: its decay and weight_decay.
      params: of the model, or their shapes.
    """
    fits = jax.tree.leaves(decaying(config.decay, params))
    if config.weight_decay and not any(fits):
        names = [leaf.path for leaf in leaves_of(params)]
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        raise UserError(
            f"decay {config.decay!r} fits no parameter, and weight_decay is "
            f"{config.weight_decay}. The parameters are {shown}. Write 'all', "
            "'kernels' or a pattern such as 'Conv*/kernel'"
        )


KERNELS = "ndim>=2"  # biases and the scales of normalisation layers are not adapted


def add_decay_with_trust(
    weight_decay: float, decay: str, trust: float, adapt: str = KERNELS
) -> optax.GradientTransformation:
    """Add decay to each gradient, and scale it as LARS does.

        r (g + weight_decay w)  with  r = trust |w| / (|g| + weight_decay |w|)

    `optax.lars` divides by |g + weight_decay w|, which is another method.

    Args:
      weight_decay: factor on the weights.
      decay: which of them decay, as in `decaying`.
      trust: length of a step at a rate of 1, over that of the tensor.
      adapt: which tensors are adapted, as a pattern of `policy`; for others r is 1, and
        so it is for those of which one of the two lengths is zero.

    Example:
      >>> link = add_decay_with_trust(0.5, "all", trust=0.1)
      >>> w, g = jnp.array([[2.0, 0.0]]), jnp.array([[3.0, 0.0]])
      >>> link.update(g, link.init(w), w)[0]
      Array([[0.2, 0. ]], dtype=float32)
    """

    def scaled(g: Array, w: Array, decays: bool, adapted: bool) -> Array:
        factor = weight_decay * decays
        update = g + factor * w if decays else g
        if not adapted:
            return update
        top = trust * norm(w)
        bottom = norm(g) + factor * norm(w)
        is_zero = (top == 0) | (bottom == 0)
        ratio = jnp.where(is_zero, 1.0, top / jnp.where(is_zero, 1.0, bottom))
        return ratio.astype(update.dtype) * update

    def of_all(updates: Tree, params: Any) -> Tree:
        fits = decaying(decay, params), which_fit(adapt, params)
        return jax.tree.map(scaled, updates, params, *fits)

    return optax.stateless(of_all)


def local(axis: Axis, limit: Clip) -> optax.GradientTransformation:
    """The norm of each worker's gradient is at most `limit`."""
    return optax.stateless(lambda tree, params: clipped(tree, limit))


def scaled(axis: Axis, limit: Clip) -> optax.GradientTransformation:
    """The norm of each worker's gradient is at most limit / sqrt(N).

    The norm of a sum of N gradients is about sqrt(N) times that of one, and so about
    `limit` at most.
    """

    def clip(tree: Tree, params: Tree | None) -> Tree:
        return clipped(tree, limit / math.sqrt(collectives.size(axis)))

    return optax.stateless(clip)


def tensor(axis: Axis, limit: Clip) -> optax.GradientTransformation:
    """The norm of each tensor of each worker's gradient is at most `limit`."""
    return clip_by_norm(limit)


def value(axis: Axis, limit: Clip) -> optax.GradientTransformation:
    """Each element is at most `limit`, in magnitude."""
    return optax.clip(limit)


def workers(
    axis: Axis, limit: Clip, each: bool = False
) -> optax.GradientTransformation:
    """All workers' gradients get one factor: the root mean square norm is the limit.

    It sends one number of each worker before the gradient, or one for each tensor.

    Args:
      axis: the mapped axis.
      limit: of the root mean square, over the workers, of the norms.
      each: a factor for every tensor instead of one for the gradient.
    """
    return clip_by_worker_norm(limit, axis, each)


def workers_value(axis: Axis) -> optax.GradientTransformation:
    """Each element is at most the root mean square of its tensor's norm, over workers.

    It sends one number for each tensor of each worker before the gradient.
    """
    return clip_values_by_worker_norm(axis)


CLIPS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "local": local,
    "scaled": scaled,
    "tensor": tensor,
    "value": value,
    "workers": workers,
    "workers_value": workers_value,
}
publish(clip=CLIPS)
# What makes no sense where each worker has a model of its own, and why.
_OF_A_MEAN = {
    "scaled": "limits the mean of all workers' gradients, which nobody computes",
    **dict.fromkeys(
        ("workers", "workers_value"),
        "asks all workers for their norms in every step, and a mixer is meant to avoid "
        "that",
    ),
}


def make_clip(
    spec: str, axis: Axis, memory: str = "", mixer: str = ""
) -> list[optax.GradientTransformation]:
    """The links that clip before the exchange: one, or none.

    Args:
      spec: such as "local(limit=1)"; "" for none.
      axis: the mapped axis.
      memory: of the run, which may clip too.
      mixer: of the run; "" where gradients are averaged.

    Example:
      >>> [link] = make_clip("value(limit=2)", "workers")
      >>> link.update(jnp.array([3.0, -1.0]), link.init(None))[0]
      Array([ 2., -1.], dtype=float32)
      >>> make_clip("local(limit=1)", "workers", memory="dgc(clip=5)")
      Traceback (most recent call last):
      jaxcomp.UserError: clip 'local(limit=1)' and memory 'dgc(clip=5)' both \
clip the gradient: leave one of them out
    """
    if not spec:
        return []
    link = build(spec, CLIPS, "clip", axis)
    [call] = calls(parse(spec))
    if mixer and call.name in _OF_A_MEAN:
        raise UserError(
            f"clip {spec!r} {_OF_A_MEAN[call.name]}: with {mixer!r} take 'local', "
            "'tensor' or 'value'"
        )
    for one in calls(parse(memory)) if memory else ():
        if one.name == "dgc" and argument(one, dgc, "clip", given=1) is not None:
            raise UserError(
                f"clip {spec!r} and memory {memory!r} both clip the gradient: leave "
                "one of them out"
            )
    return [link]


_AFTER_DIVISION = "adds its decay after the division by the variance's root"
BelowOne = Annotated[float, Range(least=0, below=1)]


class OptimizerSetting(NamedTuple):
    """What a run gives to every optimiser."""

    rate: optax.Schedule
    weight_decay: float = 0.0
    dense_steps: int = 0  # first steps at which everything is sent
    given: Call | None = None  # the memory that gives a momentum, if one does
    decay: str = "all"  # which parameters decay
    decay_at: str = "update"  # or in the gradient: then optimisers add none

    def decay_in_update(self) -> optax.GradientTransformation:
        """The link of an optimiser that adds decay to the mean gradient."""
        is_here = self.decay_at == "update"
        return self.decay_in_gradient() if is_here else optax.identity()

    def decay_in_gradient(self) -> optax.GradientTransformation:
        """The link that adds decay to what it is given."""
        mask = functools.partial(decaying, self.decay)
        return optax.add_decayed_weights(self.weight_decay, mask)

    def check_decay_apart(self, why: str) -> None:
        """Refuse decay in the gradient, for an optimiser that has to tell them apart.

        Args:
          why: it has to.
        """
        if self.decay_at == "gradient":
            message = f"{why}: set decay_at to 'update', not 'gradient'"
            raise UserError(message)


def sgd(
    setting: OptimizerSetting, momentum: BelowOne = 0.9, nesterov: bool = True
) -> optax.GradientTransformation:
    """SGD with (Nesterov) momentum on the mean gradient."""
    return optax.chain(
        setting.decay_in_update(),
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        optimizers.scale_by_rate(setting.rate),
    )


def adam(
    setting: OptimizerSetting,
    b1: BelowOne = 0.9,
    b2: BelowOne = 0.999,
    eps: Positive = 1e-8,
) -> optax.GradientTransformation:
    """Adam on the mean gradient."""
    return optax.chain(
        setting.decay_in_update(),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optimizers.scale_by_rate(setting.rate),
    )


def adamw(
    setting: OptimizerSetting,
    b1: BelowOne = 0.9,
    b2: BelowOne = 0.999,
    eps: Positive = 1e-8,
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
    setting: OptimizerSetting,
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
        optax.masked(optax.scale_by_trust_ratio(), functools.partial(which_fit, adapt)),
        optimizers.scale_by_rate(setting.rate),
    )


def lars(
    setting: OptimizerSetting,
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
    return optax.chain(
        add_decay_with_trust(setting.weight_decay, setting.decay, trust, adapt),
        # By another name than that of `sgd`: it is as short as `trust` makes it.
        optax.named_chain(("adapted", optax.trace(momentum, nesterov))),
        optimizers.scale_by_rate(setting.rate),
    )


def dgc_sgd(
    setting: OptimizerSetting, momentum: BelowOne = 0.9, nesterov: bool = False
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
    setting: OptimizerSetting, b2: BelowOne = 0.999, eps: Positive = 1e-8
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
    config: Any, stage: Stage, setting: OptimizerSetting, method: Exchange | Mixer
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
        links.insert(0, setting.decay_in_gradient())
    links = [*make_clip(config.clip, method.axis, config.memory, config.mixer), *links]
    if config.devices_per_node > 1:
        links.insert(0, mean_of_node(nodes_of(config, method.axis)))
    return links


def chained(
    links: list[optax.GradientTransformation],
) -> optax.GradientTransformationExtraArgs:
    """The links as one optax chain, which passes the key of a step on."""
    return optax.with_extra_args_support(optax.chain(*links))
