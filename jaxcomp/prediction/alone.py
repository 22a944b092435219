"""The program of one worker, run alone: what would arrive is made of what it sends.

Each collective is replaced by a copy of the right size, so that the worker compresses,
decodes and averages exactly as much as among others. That is how long an exchange takes
besides its messages, on a machine that has but one worker.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from jaxcomp.errors import UserError

__all__ = ["alone"]

# Equations that hold one program which runs once.
_INLINED = {
    *("jit", "pjit", "closed_call", "core_call", "custom_vmap_call"),
    *("custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"),
}


def alone(
    function: Callable[..., Any], *args: Any, axis: str, workers: int
) -> Callable[..., Any]:
    """A function without collectives that computes as much as one worker does.

    Args:
      function: of one worker, with collectives over `axis`.
      *args: its arguments, as arrays or specs.
      axis: name of the mapped axis.
      workers: its size.

    Returns:
      A function of such arguments, for `jax.jit`. What it returns has the right shapes
      and no meaning.

    Raises:
      UserError: there is a collective in a loop whose length is not known.

    Example:
      >>> mean = lambda x: jax.lax.pmean(x, "i")
      >>> x = jnp.ones(3)
      >>> alone(mean, x, axis="i", workers=2)(x)
      Array([0.5, 0.5, 0.5], dtype=float32)
    """
    traced = jax.make_jaxpr(function, axis_env=[(axis, workers)], return_shape=True)
    program, shapes = traced(*args)

    def run(*args: Any) -> Any:
        results = _evaluate(program, jax.tree.leaves(args), axis)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _evaluate(program: Any, inputs: Sequence[Any], axis: str) -> list[Any]:
    """The results of a program without its collectives."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    consts = program.consts if isinstance(program, ClosedJaxpr) else ()
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        given = [_value(values, v) for v in equation.invars]
        results = _results(equation, given, jaxpr, axis)
        values |= dict(zip(equation.outvars, results, strict=True))
    return [_value(values, v) for v in jaxpr.outvars]


def _results(
    equation: Any, given: list[Any], program: Jaxpr, axis: str
) -> Sequence[Any]:
    params, name = equation.params, equation.primitive.name
    if name == "axis_index":
        return [jax.lax.optimization_barrier(jnp.int32(0))]
    if axis in _axes_named(params):
        pairs = zip(given, (v.aval for v in equation.outvars), strict=True)
        return [_arrived(x, like) for x, like in pairs]
    inner = [p for v in params.values() for p in (v if isinstance(v, tuple) else (v,))]
    inner = [p for p in inner if isinstance(p, ClosedJaxpr | Jaxpr)]
    if not any(_communicates(p, axis) for p in inner):
        return _as_it_is(equation, given, program)
    if name in _INLINED:
        return _evaluate(inner[0], given, axis)
    if name == "cond":
        branches = [_as_function(p, axis) for p in params["branches"]]
        return jax.lax.switch(given[0], branches, *given[1:])
    if name == "scan":
        return _scanned(params, given, axis)
    raise UserError(f"a collective runs in {name!r}, of which nobody knows the length")


def _as_it_is(equation: Any, given: list[Any], program: Jaxpr) -> list[Any]:
    """The results of an equation without collectives."""
    pairs = zip(equation.invars, given, strict=True)
    inputs = {v: x for v, x in pairs if not isinstance(v, Literal)}
    one = program.replace(
        eqns=[equation], invars=[*inputs], constvars=[], outvars=equation.outvars
    )
    return jaxpr_as_fun(ClosedJaxpr(one, ()))(*inputs.values())


def _as_function(program: Any, axis: str) -> Callable[..., list[Any]]:
    return lambda *inputs: _evaluate(program, inputs, axis)


def _scanned(params: Any, given: list[Any], axis: str) -> list[Any]:
    fixed, carried = params["num_consts"], params["num_consts"] + params["num_carry"]

    def body(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _evaluate(params["jaxpr"], [*given[:fixed], *carry, *rows], axis)
        count = params["num_carry"]
        return list(results[:count]), list(results[count:])

    carry, rows = jax.lax.scan(
        body,
        given[fixed:carried],
        given[carried:],
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*carry, *rows]


def _arrived(x: Any, like: Any) -> Any:
    """As many elements as a collective returns, in the dtype of what it was given.

    The barrier keeps the compiler from what no collective lets it do: to join the work
    before with that behind, or to see that all messages are equal.
    """
    flat = x.reshape(-1)
    if like.size > flat.size:
        copies = jnp.broadcast_to(flat, (like.size // flat.size, flat.size))
        flat = copies.reshape(-1)
    return jax.lax.optimization_barrier(flat[: like.size].reshape(like.shape))


def _communicates(program: Any, axis: str) -> bool:
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    for equation in jaxpr.eqns:
        values = equation.params.values()
        parts = [p for v in values for p in (v if isinstance(v, tuple) else (v,))]
        inner = [p for p in parts if isinstance(p, ClosedJaxpr | Jaxpr)]
        if (
            axis in _axes_named(equation.params)
            or equation.primitive.name == "axis_index"
        ):
            return True
        if any(_communicates(p, axis) for p in inner):
            return True
    return False


def _axes_named(params: Any) -> tuple[Any, ...]:
    axes = params.get("axis_name", params.get("axes", ()))
    return axes if isinstance(axes, tuple) else (axes,)


def _value(values: dict[Any, Any], variable: Any) -> Any:
    return variable.val if isinstance(variable, Literal) else values[variable]
