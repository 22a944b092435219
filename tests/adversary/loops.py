"""Loops as users have them: a step at a time, under a mapper, saved and resized."""

import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcomp
from jaxcomp import parallel, wire
from jaxcomp.core.trees import spec_of
from jaxcomp.parallel.collectives import Lanes
from jaxcomp.parallel.mapping import on_device
from jaxcomp.parallel.placing import by_axis, specs_of
from tests.adversary.draw import Program
from tests.adversary.verdicts import BAD, Laws, bits, nested, numbers, precision

SHORT = 6  # steps that are taken one by one
leaves = jax.tree.leaves


class Loop(NamedTuple):
    """A step that is mapped over the workers."""

    state: Any
    step: Callable[[Any, Any], tuple[Any, Any]]  # (state, given) -> (result, state)
    counted: Callable[[], tuple[Any, Any]] | None = None  # bytes, traced and compiled


def axis_of(program: Program) -> Any:
    if program.mapper == "data_parallel":
        return "data"
    return Lanes("workers", "lanes") if program.per_device > 1 else "workers"


def crew_of(program: Program, workers: int) -> parallel.Workers:
    usual = program.mapper in parallel.MAPPERS
    mapper = program.mapper if usual else "shard_map"
    return parallel.setup(workers, mapper, per_device=program.per_device)


def new_count(program: Program) -> int:
    """Of workers, after a resize."""
    count = program.resize * program.per_device
    return min(count, 4) if program.mapper == "data_parallel" else count


def loop_of(program: Program, crew: Any, step: Any, state: Any) -> Loop:
    """The loop of a step of one worker: (state, given) -> (result, state).

    Args:
      program: names the mapper.
      crew: the workers.
      step: results have an axis of workers outside.
      state: spread over the workers.
    """
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        step,
        crew,
        in_axes=(axes, 0),
        out_axes=(0, axes),
        check_vma=program.mapper == "typed",
    )

    def count() -> tuple[Any, Any]:
        def given_to(axis: Any, x: Any) -> Any:
            return jax.ShapeDtypeStruct(x.shape[1:] if axis == 0 else x.shape, x.dtype)

        args, in_axes = (state, mapped_trees[0]), (axes, 0)
        one_device = on_device(step, crew, in_axes=in_axes, out_axes=(0, axes))
        one = by_axis(given_to, in_axes, args)
        found = wire.traced_collectives(
            one_device,
            *specs_of(one, in_axes, crew.per_device),
            axis=crew.device_axis,
            workers=crew.devices,
        )
        compiled = mapped.lower(*args).compile({"xla_backend_optimization_level": 0})
        return wire.collective_bytes(found), wire.collective_bytes(compiled)

    mapped_trees: list[Any] = []

    def take(state: Any, tree: Any) -> Any:
        mapped_trees[:] = [parallel.place(tree, crew, 0)]
        return mapped(state, mapped_trees[0])

    return Loop(state, take, None if program.mapper == "vmap" else count)


def mesh_of(workers: int) -> Mesh:
    devices = np.array(jax.devices()[: 2 * workers]).reshape(workers, 2)
    return Mesh(devices, ("data", "model"))


def params_of(program: Program, tree: Any, mesh: Mesh, lead: tuple[str, ...]) -> Any:
    """The tree on the mesh, each tensor cut as the program says."""

    def placed(leaf: Any) -> NamedSharding:
        names: list[str | None] = [None] * len(leaf.shape)
        if leaf.cut is not None:
            names[leaf.cut] = "model"
        return NamedSharding(mesh, PartitionSpec(*lead, *names))

    return jax.device_put(tree, nested({x.name: placed(x) for x in program.tree}))


def follow(
    laws: Laws,
    program: Program,
    loop: Loop,
    trees: Any,
    expected: Any,
    *,
    alike: bool,
    bad: bool = True,
    lossless: bool = False,
    scale: float = 0,
) -> tuple[Any, Any]:
    """Take some steps; returns the results, stacked, and the state.

    Args:
      laws: are checked on the way.
      program: of the loop.
      loop: its steps.
      trees: what workers are given, [steps, workers, ...].
      expected: the results of simulated workers.
      alike: whether workers have the same results, which `expected` has once.
      bad: whether step `BAD` is skipped.
      lossless: whether it does not matter how params are cut.
      scale: as in `Laws.same`.
    """
    state, results = loop.state, []
    for i in range(SHORT):
        before = state
        result, state = loop.step(state, jax.tree.map(lambda x, i=i: x[i], trees))
        same = spec_of(before) == spec_of(state)
        laws.check("a step returns a state like its own", same, f"step {i}")
        check_copies(laws, (result, state))
        rows = jax.tree.map(np.asarray, result)
        if alike and program.mapper != "data_parallel":
            same = all(x.tobytes() == x[:1].tobytes() * len(x) for x in leaves(rows))
            laws.check("copies are equal", same, f"results differ in step {i}")
            rows = jax.tree.map(lambda x: x[0], rows)
        results.append(rows)
        if i == BAD and bad:
            law = "a bad step changes nothing"
            laws.same(law, unclocked(before), unclocked(state), 0)
        if i == SHORT - 2 and program.saved:
            state = restored(laws, state, loop.state)
    found = jax.tree.map(lambda *x: np.stack(x), *results)
    is_cut = any(leaf.cut is not None for leaf in program.tree)
    if lossless or not is_cut:
        # Last bits of singular vectors grow with each step, until one is rounded apart.
        chaotic = any(name in str(program) for name in ("svd", "atomo"))
        steps = 2 if chaotic else SHORT
        keep = [i for i in range(steps) if i != BAD or not bad]
        a, b = (
            jax.tree.map(lambda x: np.asarray(x)[keep], t) for t in (found, expected)
        )
        law = "how params are cut" if is_cut else f"as under vmap: {program.mapper}"
        laws.same(law, a, b, 2 * precision(program), scale)
    if program.counted and loop.counted:
        traced, compiled = loop.counted()
        law = "bytes as traced and as compiled"
        laws.check(law, traced == compiled, f"{traced} and {compiled}")
    return found, state


def unclocked(state: Any) -> Any:
    """What a step that is not applied leaves as it was."""
    keep = jax.tree_util.tree_leaves_with_path(state)
    return [np.asarray(numbers(x)) for path, x in keep if "step" not in str(path[-1])]


def check_copies(laws: Laws, tree: Any) -> None:
    """Devices that hold the same piece of an array hold the same bits."""
    for x in leaves(tree):
        pieces: dict[str, bytes] = {}
        for shard in numbers(x).addressable_shards:
            same = pieces.setdefault(str(shard.index), bits(shard.data))
            found = f"of an array of shape {x.shape}"
            laws.check("copies are equal", same == bits(shard.data), found)


def restored(laws: Laws, state: Any, like: Any) -> Any:
    """The state after a checkpoint."""
    promised = laws.promised("what runs can be saved")
    with tempfile.TemporaryDirectory() as folder, promised:
        jaxcomp.save(folder, state)
        found = jaxcomp.restore(folder, like)
    for a, b in zip(*map(unreported, (state, found)), strict=True):
        same = bits(a) == bits(b) and a.dtype == b.dtype
        laws.check("saved and restored", same, f"of shape {a.shape}")
    return found


def unreported(state: Any) -> list[Any]:
    """The leaves, without those of reports, which no checkpoint holds."""

    def is_report(node: Any) -> bool:
        return isinstance(node, jaxcomp.Info)

    return [x for x in jax.tree.leaves(state, is_leaf=is_report) if not is_report(x)]


def resized(laws: Laws, state: Any, like: Any, method: Any, params: Any) -> Any:
    """The state for the workers of another one, by way of a checkpoint."""

    def resize(state: Any, workers: int) -> Any:
        return jaxcomp.resized(state, workers, method, params)

    promised = laws.promised("what runs can be resized")
    with tempfile.TemporaryDirectory() as folder, promised:
        jaxcomp.save(folder, state)
        return jaxcomp.restore(folder, like, resize=resize)
