"""A function with collectives, taken apart to tell arithmetic from communication.

Of interest are its part before the first collective, and the whole without messages.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from jaxcomp.base import Array, Tree
from jaxcomp.wire.found import WireError
from jaxcomp.wire.traced import sends

__all__ = ["first_message", "without_messages"]

_LOOPS = ("scan", "while")


class _Reached(Exception):
    """The first collective of a function, with what it is handed."""

    def __init__(self, handed: list[Array]) -> None:
        super().__init__()
        self.handed = handed


def without_messages(function: Callable[..., Tree], axis: str) -> Callable[..., Tree]:
    """The same function, in which every collective keeps what this worker hands to it.

    Args:
      function: of one worker, with collectives over `axis`. So is the result, and it is
        called where the axis is mapped.
      axis: name of the mapped axis.

    Raises:
      WireError: when called, if a collective runs in a loop.

    Example:
      >>> gather = lambda x: jax.lax.all_gather(x, "i")
      >>> x = jnp.array([1.0, 2.0])
      >>> jax.vmap(without_messages(gather, "i"), axis_name="i")(x).tolist()
      [[1.0, 1.0], [2.0, 2.0]]
    """

    def quiet(*args: Any) -> Tree:
        traced, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves = jax.tree.leaves(args)
        results = _run(traced.jaxpr, traced.consts, leaves, axis, _kept)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return quiet


def first_message(
    function: Callable[..., Tree], axis: str
) -> Callable[..., list[Array]]:
    """What a function hands to its first collective; nothing if it has none.

    Args:
      function: as in `without_messages`.
      axis: name of the mapped axis.

    Example:
      >>> total = lambda x: jax.lax.psum(3 * x, "i") / 2
      >>> jax.vmap(first_message(total, "i"), axis_name="i")(jnp.ones(2))
      [Array([3., 3.], dtype=float32)]
    """

    def first(*args: Any) -> list[Array]:
        traced = jax.make_jaxpr(function)(*args)
        try:
            _run(traced.jaxpr, traced.consts, jax.tree.leaves(args), axis, _reached)
        except _Reached as reached:
            return reached.handed
        return []

    return first


def _kept(handed: list[Array], results: list[Any]) -> list[Array]:
    """For each result of a collective, this worker's part in its shape."""
    return [_of_shape(x, spec) for x, spec in zip(handed, results, strict=False)]


def _reached(handed: list[Array], results: list[Any]) -> list[Array]:
    raise _Reached(handed)


def _of_shape(x: Array, spec: Any) -> Array:
    """As many elements as a result has, the own ones again and again."""
    flat = x.reshape(-1)
    if x.size < spec.size:
        flat = jnp.tile(flat, -(-spec.size // max(1, x.size)))
    # Otherwise the compiler could use that all workers' parts are equal.
    return jax.lax.optimization_barrier(flat[: spec.size].reshape(spec.shape))


def _run(
    jaxpr: Any,
    consts: list[Any],
    args: list[Any],
    axis: str,
    act: Callable[[list[Array], list[Any]], list[Array]],
) -> list[Array]:
    """Run a traced function, with `act` in the place of each collective."""
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def value(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else known[x]

    for equation in jaxpr.eqns:
        handed = [value(x) for x in equation.invars]
        results = _of_equation(equation, handed, axis, act)
        known |= dict(zip(equation.outvars, results, strict=True))
    return [value(x) for x in jaxpr.outvars]


def _of_equation(equation: Any, handed: list[Any], axis: str, act: Any) -> list[Any]:
    """The results of an equation; of one without collectives, as it is."""
    name, params = equation.primitive.name, equation.params
    found = sends(equation, axis)
    if found == "itself":
        return act(handed, [x.aval for x in equation.outvars])
    if not found:
        bound = equation.primitive.get_bind_params(params)
        functions, rest = (
            bound if isinstance(bound, tuple) else ((), bound)
        )  # jax 0.10.0
        results = equation.primitive.bind(*functions, *handed, **rest)
        return list(results) if equation.primitive.multiple_results else [results]
    if name in _LOOPS:
        raise WireError("a collective runs in a loop, which cannot be taken apart")
    if name == "cond":
        if act is _reached:  # what a branch hands over is known inside of it alone
            return act(handed[1:], [])
        branches = [
            lambda *args, inner=inner: _run(
                inner.jaxpr, inner.consts, [*args], axis, act
            )
            for inner in params["branches"]
        ]
        return jax.lax.switch(handed[0], branches, *handed[1:])
    inner = next(p for p in params.values() if hasattr(getattr(p, "jaxpr", p), "eqns"))
    return _run(
        getattr(inner, "jaxpr", inner), getattr(inner, "consts", []), handed, axis, act
    )
