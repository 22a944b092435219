"""What every method costs on GPUs that are not here, read from its program.

`make test-targets` compiles the exchange of each case and keeps a row of it; then

    python -m benchmarks.targets

puts the rows into the table of docs/accelerators.md.
"""

import csv
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import trees
from jaxcomp import (
    compressors,
    exchanges,
    make_exchange,
    make_mixer,
    memory,
    parallel,
    wire,
)
from jaxcomp.core.types import PerWorker
from jaxcomp.mixers import gossip, local
from jaxcomp.wire import targets

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "measured" / "targets.csv"
ROWS = ROOT / "build" / "targets"  # one file for each


class Case(NamedTuple):
    """One method."""

    exchange: str = "gather"  # "" for a mixer
    compressor: str = "none"
    memory: str = "none"
    scope: str = "whole_tree"
    mixer: str = ""
    graph: str = ""

    @property
    def title(self) -> str:
        sent = [self.compressor] if self.compressor != "none" else []
        if self.exchange == "gather":
            sent = [self.compressor]
        kept = [self.memory] if self.memory != "none" else []
        parts = [self.mixer, self.exchange, *sent, *kept, self.scope]
        return " ".join(part for part in parts if part)


_LIGHT = "top_k(keep=0.001)"
_ARGUMENTS = {"top_k": "(keep=0.001)", "threshold": "(v=0.001)"}
# What is unbiased needs no memory, and some of it may grow with one.
_UNBIASED = {"none", "natural", "qsgd", "qsgd_sparse", "terngrad", "atomo", "eden"}
_MATRICES = {"atomo", "qsvd", "svd"}
_TWO_LEVELS = "hierarchical(per_host=4)"
# Exchanges that do not take top_k, with what they take.
_COMPRESSORS = {
    **dict.fromkeys(("exact", "power_sgd", "majority_vote", "shared_scale"), "none"),
    "aligned_psum": "random_k(keep=0.01)",
    "budget": "sign",
    "two_phase": "sign",
}
_OF_EXCHANGE = {
    "budget": "budget(bits_per_step=100000000)",
    "hierarchical": _TWO_LEVELS,
    "power_sgd": "power_sgd(rank=2)",
}
_NO_MEMORY = {"exact", "majority_vote", "shared_scale"}
_GRAPHS = {"delayed_sgd": "complete", "stale_hypercube": "hypercube(one_peer=True)"}
_PLAIN_MIXERS = {"d_psgd", "delayed_sgd", "stale_hypercube"}  # send models as they are


def _by_tensor() -> list[str]:
    """Those with a form for many tensors at once."""
    made = {name: name + _ARGUMENTS.get(name, "") for name in compressors.REGISTRY}
    return [name for name, text in made.items() if compressors.make(text).segmented]


def _of_compressor(name: str, scope: str) -> Case:
    return Case(
        compressor=name + _ARGUMENTS.get(name, ""),
        memory="none" if name in _UNBIASED else "error_feedback",
        scope="per_leaf" if name in _MATRICES else scope,
    )


def _of_exchange(name: str) -> Case:
    return Case(
        _OF_EXCHANGE.get(name, name),
        _COMPRESSORS.get(name, _LIGHT),
        memory="none" if name in _NO_MEMORY else "error_feedback",
        scope="per_leaf" if name == "power_sgd" else "whole_tree",
    )


def _of_mixer(name: str) -> Case:
    if name in local.REGISTRY:
        sends = ("gather", _LIGHT) if name == "sparse_loco" else ("exact", "none")
        return Case(*sends, mixer=f"{name}(h=2)")
    compressor = "none" if name in _PLAIN_MIXERS else "sign"
    graph = _GRAPHS.get(name, "ring")
    return Case("", compressor, mixer=name, graph=graph)


CASES = (
    *(_of_exchange(name) for name in exchanges.REGISTRY),
    *(_of_compressor(name, "whole_tree") for name in compressors.REGISTRY),
    *(_of_compressor(name, "per_leaf") for name in _by_tensor()),
    *(Case("gather", _LIGHT, it) for it in memory.REGISTRY if it != "none"),
    *(_of_mixer(name) for name in (*gossip.REGISTRY, *local.REGISTRY)),
)
CASES = tuple({case.title: case for case in CASES}.values())


class Row(NamedTuple):
    """One line of the table."""

    method: str
    target: str
    launches: int
    open_loops: int
    temporary: float  # in gradients
    sent: dict[str, int]  # bytes of each worker, by kind
    traced: dict[str, int]  # the same of the traced step
    seconds: float  # of compiling


def tree_of(scale: float) -> Any:
    """The gradient of a ResNet-50, or of one with fewer channels."""
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in trees.resnet50(scale).items()
    }


def measure(case: Case, target: targets.Target, tree: Any) -> Row:
    """Compile one step of a method for a target, and read the program."""
    step, state = step_of(case, target.workers.size, tree)
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        step,
        target.workers,
        in_axes=(axes, 0),
        out_axes=(0 if case.mixer else None, axes),
        donate_argnums=(0,),
    )
    given = targets.specs(state, target, axes), targets.specs(tree, target)
    began = time.perf_counter()
    compiled = targets.compiled(mapped, target, *given)
    seconds = time.perf_counter() - began
    program = targets.read(compiled)
    assert program.memory is not None
    traced = wire.traced_collectives(
        step, state, tree, axis=parallel.AXIS, workers=target.workers.size
    )
    return Row(
        case.title,
        f"{target.hosts} x {target.devices} {target.name}",
        program.launches,
        len(program.open_loops),
        program.memory.temporary / wire.dense_bytes(tree),
        wire.collective_bytes(program.collectives),
        wire.collective_bytes(traced),
        seconds,
    )


def step_of(case: Case, workers: int, tree: Any) -> Any:
    """(state, gradient) -> (mean or update, state), and the shapes of a fresh state."""
    base = jax.random.key(0)
    if not case.mixer:
        parts = case.exchange, case.compressor, case.memory, case.scope
        exchange = make_exchange(*parts)

        def averaged(state: Any, grads: Any) -> Any:
            count, inner = state
            key = jax.random.fold_in(base, count)
            found = exchange.average(grads, inner, key)
            return found.mean, (count + 1, found.state)

        return averaged, jax.eval_shape(lambda: (jnp.int32(0), exchange.init(tree)))
    mixer = make_mixer(
        case.mixer,
        case.graph or None,
        workers,
        exchange=case.exchange or None,
        compressor=case.compressor,
        scope=case.scope,
    )
    last = max(mixer.schedule)  # the phase that sends

    def mixing(state: Any, grads: Any) -> Any:
        count, inner, params = state
        key = jax.random.fold_in(base, count)
        mixed = mixer.mix(params.value, grads, inner.value, key, last)
        moved = jax.tree.map(jnp.add, params.value, mixed.updates)
        return moved, (count + 1, PerWorker(mixed.state), PerWorker(moved))

    def start() -> Any:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)
        return jnp.int32(0), PerWorker(mixer.init(zeros)), PerWorker(zeros)

    return mixing, jax.eval_shape(start)


def save(row: Row) -> None:
    """Keep a row for `write`, which another process may call."""
    ROWS.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "_" for c in f"{row.method} {row.target}")
    (ROWS / f"{name}.json").write_text(json.dumps(row._asdict()))


def write() -> None:
    """All rows of one host that are kept, as the table of docs/accelerators.md."""
    rows = [Row(**json.loads(path.read_text())) for path in ROWS.glob("*.json")]
    titles = [case.title for case in CASES]
    rows = [row for row in rows if row.target.startswith("1 x ")]
    rows.sort(key=lambda row: titles.index(row.method))
    with open(TABLE, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = "method target launches open_loops temporary sent seconds"
        writer.writerow(names.split())
        for row in rows:
            sent, size = sum(row.sent.values()), f"{row.temporary:.2f}"
            counts = row.launches, row.open_loops, size, sent, round(row.seconds)
            writer.writerow((row.method, row.target, *counts))
    print(f"wrote {TABLE}; `python -m benchmarks.figures --write` shows it")


if __name__ == "__main__":
    write()
