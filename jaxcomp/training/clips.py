"""The key clip of a config: what is clipped before the exchange, and by which norm."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxcomp import collectives
from jaxcomp.base import Axis, Tree
from jaxcomp.clipping import (
    clip_by_norm,
    clip_by_worker_norm,
    clip_values_by_worker_norm,
)
from jaxcomp.errors import UserError
from jaxcomp.memory import dgc
from jaxcomp.specs import Clip, argument, build, calls, parse, publish
from jaxcomp.trees import clipped

__all__ = ["REGISTRY", "make"]


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

    def clip(tree: Tree, params: Tree | None) -> Tree:
        return jax.tree.map(lambda x: jnp.clip(x, -limit, limit), tree)

    return optax.stateless(clip)


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


REGISTRY: dict[str, Callable[..., optax.GradientTransformation]] = {
    "local": local,
    "scaled": scaled,
    "tensor": tensor,
    "value": value,
    "workers": workers,
    "workers_value": workers_value,
}
publish(clip=REGISTRY)
# What makes no sense where each worker has a model of its own, and why.
_OF_A_MEAN = {
    "scaled": "limits the mean of all workers' gradients, which nobody computes",
    **dict.fromkeys(
        ("workers", "workers_value"),
        "asks all workers for their norms in every step, and a mixer is meant to avoid "
        "that",
    ),
}


def make(
    spec: str, axis: Axis, memory: str = "", mixer: str = ""
) -> list[optax.GradientTransformation]:
    """The links that clip before the exchange: one, or none.

    Args:
      spec: such as "local(limit=1)"; "" for none.
      axis: the mapped axis.
      memory: of the run, which may clip too.
      mixer: of the run; "" where gradients are averaged.

    Example:
      >>> [link] = make("value(limit=2)", "workers")
      >>> link.update(jnp.array([3.0, -1.0]), link.init(None))[0]
      Array([ 2., -1.], dtype=float32)
      >>> make("local(limit=1)", "workers", memory="dgc(clip=5)")
      Traceback (most recent call last):
      jaxcomp.errors.UserError: clip 'local(limit=1)' and memory 'dgc(clip=5)' both \
clip the gradient: leave one of them out
    """
    if not spec:
        return []
    link = build(spec, REGISTRY, "clip", axis)
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
