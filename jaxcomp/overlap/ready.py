"""The order in which gradients become ready, read from the traced gradient function."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxcomp.base import Tree

__all__ = ["ready_order"]


def ready_order(
    gradient: Callable[..., Tree], *args: Any, axes: Mapping[str, int] | None = None
) -> Tree:
    """For each array that a function returns, how early it can be computed.

    The number of an array is the length of the longest chain of operations that leads
    to it. Calls of jitted and checkpointed functions are looked into. The results of a
    loop are there when all of its rounds have ended.

    Args:
      gradient: such as `jax.grad(loss)`. It is traced and does not run.
      *args: its arguments, as arrays or specs.
      axes: mapped axes with their sizes, if the function has collectives over them.

    Returns:
      A tree of the structure of the gradient: small numbers are ready first.

    Example:
      >>> import jax.numpy as jnp
      >>> def loss(params, x):
      ...     return jnp.sum(params["out"] * jnp.tanh(params["in"] * x))
      >>> params = {"in": jnp.ones(3), "out": jnp.ones(3)}
      >>> order = ready_order(jax.grad(loss), params, jnp.ones(3))
      >>> order["out"] < order["in"]
      True
    """
    trace = jax.make_jaxpr(
        gradient, axis_env=[*(axes or {}).items()], return_shape=True
    )
    program, shapes = trace(*args)
    depths = _depths(program.jaxpr, [0] * len(program.jaxpr.invars))
    return jax.tree.unflatten(jax.tree.structure(shapes), depths)


def _depths(jaxpr: Any, given: list[int]) -> list[int]:
    """The longest chain up to each result of a jaxpr.

    Args:
      jaxpr: without constants of its own, or with constants that cost nothing.
      given: the longest chain up to each of its arguments.
    """
    known = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> int:
        return 0 if hasattr(atom, "val") else known.get(atom, 0)  # a literal has `val`

    for equation in jaxpr.eqns:
        before = [of(atom) for atom in equation.invars]
        inner = _called(equation)
        if inner is None:
            chain = max(before, default=0) + _rounds(equation)
            after = [chain] * len(equation.outvars)
        else:
            after = _depths(inner, before)
        known.update(zip(equation.outvars, after, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _rounds(equation: Any) -> int:
    """The longest chain inside an operation: that of a loop, times its rounds."""
    if equation.primitive.name != "scan":
        return 1
    body = equation.params["jaxpr"].jaxpr
    each = max(_depths(body, [0] * len(body.invars)), default=0)
    return max(each, 1) * equation.params["length"]


def _called(equation: Any) -> Any | None:
    """The jaxpr that an equation calls once; None for operations and loops."""
    if equation.primitive.name == "scan":
        return None
    for name in ("jaxpr", "call_jaxpr"):
        found = equation.params.get(name)
        inner = getattr(found, "jaxpr", found)  # of a closed one
        if not hasattr(inner, "eqns"):
            continue
        arguments, results = len(inner.invars), len(inner.outvars)
        if (arguments, results) == (len(equation.invars), len(equation.outvars)):
            return inner
    return None
