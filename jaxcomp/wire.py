"""Bytes that really cross the wire, read from the compiled program.

What Python says and what is sent differ: a bf16 all-reduce travels as float32 on some
backends, a bool as a byte. So the figure is read where it cannot lie, in the text of
the program that runs.

The unit is what one worker hands to a collective: the size of its operands. How often
a network copies it is the network's business and depends on the algorithm; `link_bytes`
gives the figure of the usual ring algorithms.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

__all__ = [
    "Collective",
    "WireError",
    "collective_bytes",
    "collectives",
    "dense_bytes",
    "link_bytes",
    "traced_collectives",
]


class WireError(ValueError):
    """The program holds a collective whose bytes cannot be told."""


class Collective(NamedTuple):
    """One collective operation of a program."""

    kind: str  # "all-gather", "all-reduce", "reduce-scatter", "all-to-all", ...
    nbytes: int  # what one worker hands over each time it runs
    workers: int  # size of the group
    times: int = 1  # how often one execution of the program runs it


def collective_bytes(program: Any) -> dict[str, int]:
    """Bytes that each worker sends in one execution of a program, by collective.

    Args:
      program: a compiled program (`jitted.lower(...).compile()`), its text, or a list
        of `Collective`.

    Returns:
      {kind: bytes of the operands}. Groups of one worker send nothing.

    Raises:
      WireError: a collective runs in a loop whose length the program does not tell.

    Example:
        >>> collective_bytes(
        ...     "ENTRY %main {\\n"
        ...     "  %x = u32[8]{0} parameter(0)\\n"
        ...     "  %g = u32[4,8]{1,0} all-gather(%x), replica_groups={{0,1,2,3}}\\n"
        ...     "}"
        ... )
        {'all-gather': 32}
    """
    found = program if isinstance(program, list) else collectives(program)
    total: dict[str, int] = defaultdict(int)
    for collective in found:
        total[collective.kind] += collective.nbytes * collective.times
    return dict(total)


def collectives(program: Any) -> list[Collective]:
    """All collectives of a compiled program, in the order of its text."""
    text = program if isinstance(program, str) else program.as_text()
    bodies = _computations(text)
    times = _executions(bodies)
    result = []
    for name, lines in bodies.items():
        shapes = _shapes(lines)
        for line in lines:
            collective = _collective(line, shapes)
            if collective is None or collective.workers == 1:
                continue
            if times[name] is None:
                message = (
                    f"{collective.kind} runs in a loop of unknown length ({name}); "
                    "take the collective out of the loop, or use a scan"
                )
                raise WireError(message)
            if times[name]:
                result.append(collective._replace(times=times[name]))
    return result


def traced_collectives(function: Any, *args: Any, axis: str, workers: int) -> list:
    """The collectives of a per-worker function, without devices to run it on.

    For simulated workers, where nothing moves: what the same step hands to its
    collectives when the workers are real. Figures of programs that are compiled for
    real workers come from `collective_bytes`.

    Args:
      function: names `axis` in its collectives.
      *args: arrays or specs as ONE worker sees them.
      axis: name of the mapped axis.
      workers: its size.
    """
    mesh = jax.sharding.AbstractMesh((workers,), (axis,))
    spec = jax.sharding.PartitionSpec()
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    whole = jax.make_jaxpr(mapped)(*args).jaxpr
    # The compiler leaves out what nobody reads.
    read, _ = partial_eval.dce_jaxpr(whole, [True] * len(whole.outvars))
    return [c for c in _traced(read, workers, 1) if c.workers > 1]


def link_bytes(found: Iterable[Collective]) -> float:
    """Bytes that leave each worker when collectives run as rings.

    all-reduce: 2 (N-1)/N n; all-gather: (N-1) n; reduce-scatter and all-to-all:
    (N-1)/N n; permute: n; with n the operand's bytes and N workers.

    Example:
        >>> link_bytes([Collective("all-gather", nbytes=10, workers=4)])
        30.0
    """
    total = 0.0
    for kind, nbytes, n, times in found:
        factor = {
            "all-reduce": 2 * (n - 1) / n,
            "all-gather": n - 1,
            "reduce-scatter": (n - 1) / n,
            "all-to-all": (n - 1) / n,
            "collective-permute": 1,
        }[kind]
        total += factor * nbytes * times
    return total


def dense_bytes(tree: Any) -> int:
    """Bytes of a tree of arrays or specs when it is sent as it is.

    Example:
        >>> dense_bytes({"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)})
        64
    """
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in leaves)


# --- Reading the compiled program -------------------------------------------------

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"^(\([^=]*?\)|\S+) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


def _computations(text: str) -> dict[str, list[str]]:
    """Name -> instruction lines; the entry computation is named "ENTRY"."""
    bodies: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" ") and "HloModule" not in line:
            entry = line.startswith("ENTRY")
            name = line.removeprefix("ENTRY").strip().lstrip("%").split(" ")[0]
            current = bodies.setdefault("ENTRY" if entry else name, [])
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(re.sub(r"/\*.*?\*/", "", line))  # /*index=5*/ in long tuples
    return bodies


def _executions(bodies: dict[str, list[str]]) -> dict[str, int | None]:
    """How often each computation runs in one execution; None: nobody can tell."""
    times: dict[str, int | None] = dict.fromkeys(bodies, 0)

    def visit(name: str, count: int | None) -> None:
        before = times[name]
        times[name] = None if count is None or before is None else before + count
        for line in bodies[name]:
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
            loop = " while(" in line
            inner = count
            if loop:
                inner = count * int(trips[1]) if trips and count is not None else None
            for callee in _callees(line):
                if callee in bodies:
                    visit(callee, inner)

    visit("ENTRY", 1)
    return times


def _callees(line: str) -> list[str]:
    """Computations that an instruction runs."""
    names = re.findall(r"(?:to_apply|calls|body|condition)=%?([\w.\-]+)", line)
    for branches in re.findall(r"branch_computations=\{([^}]*)\}", line):
        names += [name.strip().lstrip("%") for name in branches.split(",")]
    pair = r"(?:true|false)_computation=%?([\w.\-]+)"
    return names + re.findall(pair, line)


def _shapes(lines: list[str]) -> dict[str, str]:
    """Instruction name -> text of its result shape."""
    shapes = {}
    for line in lines:
        instruction = _INSTRUCTION.match(line)
        operation = instruction and _OPERATION.match(instruction[2])
        if instruction and operation:
            shapes[instruction[1]] = operation[1]
    return shapes


def _collective(line: str, shapes: dict[str, str]) -> Collective | None:
    """The collective of an instruction line, or None for any other instruction."""
    instruction = _INSTRUCTION.match(line)
    operation = instruction and _OPERATION.match(instruction[2])
    if not operation:
        return None
    kind = operation[2].removesuffix("-start")  # "-done" belongs to a start
    if kind not in _KINDS:
        return None
    operands = operation[3].split(")")[0]
    names = re.findall(r"%([\w.\-]+)", operands)
    nbytes = sum(_nbytes(shapes.get(name, "")) for name in names)
    return Collective(kind, nbytes, _group_size(line))


def _nbytes(shape: str) -> int:
    """Bytes of a shape such as "f32[2,3]{1,0}" or a tuple of them."""
    bits = 0
    for dtype, dims in _SHAPE.findall(shape):
        width = _BITS.get(dtype) or int((re.search(r"\d+", dtype) or [0])[0])
        bits += width * math.prod(int(d) for d in dims.split(",") if d)
    return bits // 8


def _group_size(line: str) -> int:
    """Workers in a group: {{0,1},{2,3}} or [groups,size]<=[total]."""
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    if listed:
        return len(listed[1].split(","))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if iota:
        return int(iota[1])
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", line)
    if pairs:
        ends = {tuple(p.split(",")) for p in re.findall(r"\{?(\d+,\d+)", pairs[1])}
        return 2 if any(source != target for source, target in ends) else 1
    raise WireError(f"cannot read the group of a collective: {line.strip()[:200]}")


# --- Reading a traced program -----------------------------------------------------

_PRIMITIVES = {
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


def _traced(jaxpr: Any, workers: int, times: int) -> list[Collective]:
    result = []
    for equation in jaxpr.eqns:
        kind = _PRIMITIVES.get(equation.primitive.name)
        if kind:
            groups = equation.params.get("axis_index_groups")
            size = len(groups[0]) if groups else workers
            avals = [v.aval for v in equation.invars if v.aval.shape is not None]
            result.append(Collective(kind, dense_bytes(avals), size, times))
        inner_times = times * equation.params.get("length", 1)
        for inner in _inner_jaxprs(equation.params):
            inside = _traced(inner, workers, inner_times)
            if inside and equation.primitive.name == "while":
                raise WireError("a collective runs in a while loop of unknown length")
            result += inside
    return result


def _inner_jaxprs(params: dict[str, Any]) -> list[Any]:
    """Jaxprs among the parameters of an equation: of calls, loops and branches."""
    values = [v for p in params.values() for v in (p if isinstance(p, tuple) else (p,))]
    inner = [getattr(v, "jaxpr", v) for v in values]
    return [v for v in inner if hasattr(v, "eqns")]
