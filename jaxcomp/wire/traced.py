"""Find the collectives of a traced function, for workers that are simulated."""

from typing import Any

import jax
from jax.interpreters import partial_eval

from jaxcomp.wire.figures import dense_bytes
from jaxcomp.wire.found import Collective, Groups, WireError

__all__ = ["sends", "traced_collectives"]

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


def sends(equation: Any, axis: str) -> str:
    """Where an equation has a collective: "itself", "inside" of it, or "" for none."""
    is_silent = equation.primitive.name in _SILENT
    if not is_silent and axis in _axes_named(equation.params):
        return "itself"
    inner = [e for jaxpr in _inner_jaxprs(equation.params) for e in jaxpr.eqns]
    return "inside" if any(sends(e, axis) for e in inner) else ""


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
    moves = any(len(set(group)) > 1 for group in groups)
    size = max(len(group) for group in groups) if moves else 1
    sent = equation.invars[:1] if kind == "ragged-all-to-all" else equation.invars
    nbytes = dense_bytes([_left_to_send(v.aval, axes) for v in sent])
    return [Collective(kind, nbytes, size, times, groups)]


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
