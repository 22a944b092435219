"""The collectives of a traced function, and the function with others in their place."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.interpreters import partial_eval

from jaxcomp.core.types import Array, Tree
from jaxcomp.wire.bytes import Collective, Groups, dense_bytes, largest
from jaxcomp.wire.program import WireError

_PRIMITIVES = {
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_gather_reduced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "pbroadcast": "collective-broadcast",
}
_SILENT = {"axis_index", "pvary", "preduced"}  # have an axis but send nothing


def traced_collectives(
    function: Any, *args: Any, axis: str, workers: int
) -> list[Collective]:
    """The collectives of the function of one worker, without running or compiling it.

    Simulated workers send nothing. This tells what the same function would hand to its
    collectives if each worker had a device. For programs that are compiled for such
    workers, take `collective_bytes`.

    Args:
      function: of one worker, with collectives over `axis`.
      *args: its arguments, as arrays or specs.
      axis: name of the mapped axis.
      workers: its size.

    Raises:
      WireError: an operation over the axis is not known, or runs in a loop of unknown
        length.
    """
    mesh = jax.sharding.AbstractMesh((workers,), (axis,))
    spec = jax.sharding.PartitionSpec()
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    whole = jax.make_jaxpr(mapped)(*args).jaxpr
    # The compiler removes operations whose results are not used.
    read, _ = partial_eval.dce_jaxpr(whole, [True] * len(whole.outvars))
    return [c for c in _traced(read, axis, workers, 1) if c.workers > 1]


def _traced(jaxpr: Any, axis: str, workers: int, times: int) -> list[Collective]:
    result = []
    for equation in jaxpr.eqns:
        axes = _axes_named(equation.params)
        if axis in axes:
            result += _collective(equation, axes, workers, times)
        inner_times = times * equation.params.get("length", 1)
        for inner in _inner_jaxprs(equation.params):
            inside = _traced(inner, axis, workers, inner_times)
            if inside and equation.primitive.name == "while":
                raise WireError("a collective runs in a while loop of unknown length")
            result += inside
    return result


def _collective(
    equation: Any, axes: tuple[Any, ...], workers: int, times: int
) -> list[Collective]:
    """The collective of an equation over the axis; none if it sends nothing."""
    name = equation.primitive.name
    if name in _SILENT:
        return []
    if name not in _PRIMITIVES:
        known = ", ".join(_PRIMITIVES)
        raise WireError(f"cannot read {equation}\nKnown over an axis: {known}")
    kind = _PRIMITIVES[name]
    groups = _groups(equation.params, workers)
    sent = equation.invars[:1] if kind == "ragged-all-to-all" else equation.invars
    nbytes = dense_bytes([_left_to_send(v.aval, axes) for v in sent])
    return [Collective(kind, nbytes, largest(groups), times, groups)]


def _left_to_send(aval: Any, axes: tuple[Any, ...]) -> jax.ShapeDtypeStruct:
    """The array that is handed over, after a sum over dimensions of its own."""
    shape = tuple(n for i, n in enumerate(aval.shape) if i not in axes)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _groups(params: dict[str, Any], workers: int) -> Groups:
    if "perm" in params:
        return tuple(tuple(pair) for pair in params["perm"])
    groups = params.get("axis_index_groups") or (range(workers),)
    return tuple(tuple(group) for group in groups)


def _axes_named(params: dict[str, Any]) -> tuple[Any, ...]:
    """The axes of an equation: names of mapped axes, numbers of array dimensions."""
    axes = params.get("axis_name", params.get("axes", ()))
    return axes if isinstance(axes, tuple) else (axes,)


def _inner_jaxprs(params: dict[str, Any]) -> list[Any]:
    """Jaxprs among the parameters of an equation: of calls, loops and branches."""
    values = [v for p in params.values() for v in (p if isinstance(p, tuple) else (p,))]
    inner = [getattr(v, "jaxpr", v) for v in values]
    return [v for v in inner if hasattr(v, "eqns")]


# What takes the place of a collective: (name of the primitive, what it is handed, what
# it returns) -> results.
Act = Callable[[str, list[Any], list[Any]], list[Array]]


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
      WireError: when called, if a collective runs in a loop of unknown length.

    Example:
      >>> gather = lambda x: jax.lax.all_gather(x, "i")
      >>> x = jnp.array([1.0, 2.0])
      >>> jax.vmap(without_messages(gather, "i"), axis_name="i")(x).tolist()
      [[1.0, 1.0], [2.0, 2.0]]
    """

    def quiet(*args: Any) -> Tree:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _run(program, jax.tree.leaves(args), axis, _kept)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return quiet


def without_collectives(
    function: Callable[..., Tree], *args: Any, axis: str, workers: int
) -> Callable[..., Tree]:
    """A function without an axis that computes as much as one worker does.

    Args:
      function: of one worker, with collectives over `axis`.
      *args: its arguments, as arrays or specs.
      axis: name of the mapped axis.
      workers: its size.

    Returns:
      A function of such arguments, for `jax.jit`. What it returns has the right shapes
      and no meaning.

    Raises:
      WireError: when called, if a collective runs in a loop of unknown length.

    Example:
      >>> mean = lambda x: jax.lax.pmean(x, "i")
      >>> x = jnp.ones(3)
      >>> without_collectives(mean, x, axis="i", workers=2)(x)
      Array([0.5, 0.5, 0.5], dtype=float32)
    """
    traced = jax.make_jaxpr(function, axis_env=[(axis, workers)], return_shape=True)
    program, shape = traced(*args)

    def run(*args: Any) -> Tree:
        results = _run(program, jax.tree.leaves(args), axis, _alone)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


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
        try:
            _run(jax.make_jaxpr(function)(*args), jax.tree.leaves(args), axis, _reached)
        except _Reached as reached:
            return reached.handed
        return []

    return first


def _kept(name: str, handed: list[Any], results: list[Any]) -> list[Array]:
    """For each result of a collective, this worker's part in its shape."""
    return [_of_shape(x, spec) for x, spec in zip(handed, results, strict=False)]


def _alone(name: str, handed: list[Any], results: list[Any]) -> list[Array]:
    """The same where no axis is mapped: then this is the first worker."""
    if name == "axis_index":
        return [jax.lax.optimization_barrier(jnp.int32(0))]
    return _kept(name, handed, results)


def _reached(name: str, handed: list[Any], results: list[Any]) -> list[Array]:
    raise _Reached(handed)


def _of_shape(x: Array, spec: Any) -> Array:
    """As many elements as a result has, the own ones again and again."""
    flat = x.reshape(-1)
    if x.size < spec.size:
        flat = jnp.tile(flat, -(-spec.size // max(1, x.size)))
    # Otherwise the compiler could join the work before with that behind, or use that
    # all workers' parts are equal.
    return jax.lax.optimization_barrier(flat[: spec.size].reshape(spec.shape))


def _run(program: Any, args: list[Any], axis: str, act: Act) -> list[Array]:
    """Run a traced function, with `act` in the place of each collective."""
    jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def value(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else known[x]

    for equation in jaxpr.eqns:
        handed = [value(x) for x in equation.invars]
        results = _results(equation, handed, axis, act)
        known |= dict(zip(equation.outvars, results, strict=True))
    return [value(x) for x in jaxpr.outvars]


def _results(equation: Any, handed: list[Any], axis: str, act: Act) -> list[Any]:
    """The results of an equation; of one that does not name the axis, as it is."""
    name, params = equation.primitive.name, equation.params
    silent = set() if act is _alone else _SILENT
    if axis in _axes_named(params) and name not in silent:
        return act(name, handed, [x.aval for x in equation.outvars])
    inner = any(_names_axis(p, axis, silent) for p in _inner_jaxprs(params))
    if not inner:
        # jax 0.10.0 gives a pair, of which the first are functions.
        bound = equation.primitive.get_bind_params(params)
        functions, rest = bound if isinstance(bound, tuple) else ((), bound)
        results = equation.primitive.bind(*functions, *handed, **rest)
        return list(results) if equation.primitive.multiple_results else [results]
    if name == "while":
        raise WireError(
            "a collective runs in 'while', of which nobody knows the length"
        )
    if act is _reached and name in ("cond", "scan"):
        # What they hand over is known inside of them alone.
        raise _Reached(handed[name == "cond" :])
    if name == "cond":
        return jax.lax.switch(
            handed[0],
            [
                lambda *given, one=one: _run(one, [*given], axis, act)
                for one in params["branches"]
            ],
            *handed[1:],
        )
    if name == "scan":
        return _scanned(params, handed, axis, act)
    wholes = [p for p in params.values() if hasattr(getattr(p, "jaxpr", p), "eqns")]
    return _run(wholes[0], handed, axis, act)


def _scanned(params: Any, handed: list[Any], axis: str, act: Act) -> list[Any]:
    fixed, count = params["num_consts"], params["num_carry"]

    def body(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        given = [*handed[:fixed], *carry, *rows]
        results = _run(params["jaxpr"], given, axis, act)
        return results[:count], results[count:]

    carry, rows = handed[fixed : fixed + count], handed[fixed + count :]
    length, reverse = params["length"], params["reverse"]
    carry, rows = jax.lax.scan(body, carry, rows, length=length, reverse=reverse)
    return [*carry, *rows]


def _names_axis(jaxpr: Any, axis: str, silent: set[str]) -> bool:
    """Whether a program names an axis, in itself or in what it calls."""
    return any(
        (axis in _axes_named(e.params) and e.primitive.name not in silent)
        or any(_names_axis(inner, axis, silent) for inner in _inner_jaxprs(e.params))
        for e in jaxpr.eqns
    )
