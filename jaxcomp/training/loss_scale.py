"""Loss scales: gradients that float16 could not hold, and what an overflow does.

A float16 number below 6e-8 is zero, and gradients are often smaller. So the backward
pass computes the gradient of scale * loss, and the float32 gradient of the weights is
divided by the scale before anything else sees it: accumulation, clipping, compression
and memories know nothing of it. A power of two changes no digit.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Tree
from jaxcomp.errors import UserError
from jaxcomp.specs import Count, Positive, Range, build, publish
from jaxcomp.trees import cast_like, widen

__all__ = [
    "REGISTRY",
    "UNSCALED",
    "LossScale",
    "ScaleState",
    "make",
    "value_and_grad",
]

LEAST, MOST = 1.0, 2.0**24  # of a scale that moves


class LossScale(NamedTuple):
    """How large a scale is, and what becomes of it after a step."""

    init: Callable[[], Tree]  # its state before the first step
    factor: Callable[[Tree], Array | None]  # state -> [] float32; None: nothing is done
    # (state, whether the step was applied) -> state after it
    after: Callable[[Tree, Array], Tree]
    # (state, whether a step with a finite loss was left out) -> what it tells of it
    report: Callable[[Tree, Array], dict[str, Array]] = lambda state, lost: {}
    figures: tuple[str, ...] = ()  # the names of what is told


class ScaleState(NamedTuple):
    """State of `dynamic`."""

    scale: Array  # [] float32
    steps: Array  # [] int32, applied since the scale has changed


def static(scale: Positive = 1024.0) -> LossScale:
    """The same scale in all steps; an overflow is a step that is not finite.

    Args:
      scale: a power of two, so that no digit changes.
    """
    return LossScale(
        init=tuple,
        factor=lambda state: jnp.float32(scale),
        after=lambda state, applied: state,
    )


def dynamic(
    start: Annotated[float, Range(least=LEAST, most=MOST)] = 65536.0,
    every: Count = 2000,
) -> LossScale:
    """The largest scale that does not overflow, found by trial.

    A step that is not applied halves the scale, to 1 at least. After `every` applied
    steps in a row it doubles, to 2^24 at most.

    Args:
      start: the first scale.
      every: applied steps until a larger scale is tried.

    References:
      Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, 2018.
    """

    def after(state: ScaleState, applied: Array) -> ScaleState:
        grows = state.steps + 1 >= every
        larger = jnp.minimum(2 * state.scale, MOST)
        smaller = jnp.maximum(state.scale / 2, LEAST)
        kept = jnp.where(grows, larger, state.scale)
        steps = jnp.where(grows | ~applied, 0, state.steps + 1)
        return ScaleState(jnp.where(applied, kept, smaller), steps)

    def report(state: ScaleState, lost: Array) -> dict[str, Array]:
        # At the least scale it is no overflow that a smaller one would mend.
        return {"loss_scale": state.scale, "overflowed": lost & (state.scale > LEAST)}

    return LossScale(
        init=lambda: ScaleState(jnp.float32(start), jnp.int32(0)),
        factor=lambda state: state.scale,
        after=after,
        report=report,
        figures=("loss_scale", "overflowed"),
    )


REGISTRY: dict[str, Callable[..., LossScale]] = {"dynamic": dynamic, "static": static}
publish(loss_scale=REGISTRY)

UNSCALED = static(1.0)._replace(factor=lambda state: None)


def make(spec: str, compute_dtype: str) -> LossScale:
    """The loss scale of a config.

    Args:
      spec: such as "dynamic(start=65536)"; "" for none.
      compute_dtype: of the model; float16 needs a scale.

    Example:
      >>> float(make("static(scale=128)", "float16").factor(()))
      128.0
      >>> make("", "float16")
      Traceback (most recent call last):
      jaxcomp.errors.UserError: compute_dtype 'float16' turns gradients below 6e-8 \
into zeros: set loss_scale to 'dynamic', or to 'static(scale=1)' to try it all the same
    """
    if spec:
        return build(spec, REGISTRY, "loss_scale")
    if compute_dtype == "float16":
        raise UserError(
            "compute_dtype 'float16' turns gradients below 6e-8 into zeros: set "
            "loss_scale to 'dynamic', or to 'static(scale=1)' to try it all the same"
        )
    return UNSCALED


def value_and_grad(
    function: Callable[..., tuple[Array, Any]], factor: Array | None
) -> Callable[..., tuple[tuple[Array, Any], Tree]]:
    """`jax.value_and_grad` of a loss with `has_aux`, by a scaled backward pass.

    Args:
      function: (parameters, ...) -> (loss, anything else).
      factor: [] scale of the backward pass; None for an ordinary one.

    Example:
      >>> step = value_and_grad(lambda x: (3 * x, "more"), jnp.float32(8))
      >>> (loss, aux), gradient = step(jnp.float32(2))
      >>> float(loss), aux, float(gradient)
      (6.0, 'more', 3.0)
    """
    if factor is None:
        return jax.value_and_grad(function, has_aux=True)

    def scaled(*args: Any) -> tuple[Array, tuple[Array, Any]]:
        loss, aux = function(*args)
        return loss * factor.astype(loss.dtype), (loss, aux)

    def call(*args: Any) -> tuple[tuple[Array, Any], Tree]:
        differentiated = jax.value_and_grad(scaled, has_aux=True)
        (_, result), gradient = differentiated(*args)
        # In float32, as float16 has no 65536.
        wide = jax.tree.map(lambda g: g / factor.astype(g.dtype), widen(gradient))
        return result, cast_like(wide, gradient)

    return call
