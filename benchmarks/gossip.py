"""What does a round of gossip cost beside one in which whole models travel?

Every method mixes models of a ResNet-50 on a ring of virtual CPU devices, in turns with
`d_psgd` and with a read pass by all workers. Updates are given, so there is no gradient
in the times; state is fed back, as in training. Local methods are timed at the step
that sends. Medians of the turns; compilation is not in them.

    python -m benchmarks.gossip --out build
    python -m benchmarks.gossip --cases choco --scale 0.3

Where torch is installed, CHOCO in plain PyTorch runs in the same turns: all workers one
after the other, tensor by tensor with peers_torch.py's compressors, each with both
cores. Its messages are handed over by reference, so its network is free. All sides keep
the memory that they free, as a fresh page costs more than the arithmetic on it; --pages
chooses otherwise.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxcomp
from benchmarks import trees
from benchmarks.common import (
    PAGES,
    in_turns,
    others,
    ratio,
    read_pass,
    torch_peers,
    with_pages,
    write_csv,
)
from benchmarks.vectors import draw
from jaxcomp import parallel, wire
from jaxcomp.core.types import PerWorker
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip.topology import Round

GAMMA = 0.5


class Case(NamedTuple):
    """One method; local ones have an exchange instead of the ring."""

    mixer: str
    compressor: str = "none"
    exchange: str | None = None

    @property
    def title(self) -> str:
        none = self.compressor == "none"
        return self.mixer if none else f"{self.mixer}, {self.compressor}"


_BASELINE = Case("d_psgd")
CASES = (
    _BASELINE,
    Case("choco", "sign"),
    Case("choco", "top_k(keep=0.01)"),
    Case("choco", "qsgd(levels=127)"),
    Case("choco_overlapped", "sign"),
    Case("dcd_psgd", "qsgd(levels=127)"),
    Case("ecd_psgd", "qsgd(levels=2047, norm='max')"),
    Case("deep_squeeze", "qsgd(levels=127)"),
    Case("local_sgd", "none", "exact"),
    Case("diloco", "qsgd(levels=7, norm='max')", "gather"),
    Case("sparse_loco", "top_k(keep=0.01)", "gather"),
)
# What simulates a delay sends more than the method that it stands for.
_SIMULATED = ("delayed_sgd", "stale_hypercube")
_COVERED = (*(case.mixer for case in CASES), *_SIMULATED)
# Mixers without a line above are run with their defaults.
CASES += tuple(map(Case, others(_COVERED, gossip.REGISTRY)))
CASES += tuple(Case(m, exchange="exact") for m in others(_COVERED, local.REGISTRY))


class Row(NamedTuple):
    """One line of the table and of the CSV."""

    method: str
    elements: int
    workers: int
    ms: float  # of a step of all workers
    to_d_psgd: float
    to_read: float
    torch: float | None  # time of the peer / ours; None without a peer
    compile_s: float
    memory: float  # temporaries and output of a worker, in models
    sent: int  # bytes that a worker hands to its collectives
    messages: int
    pages: str = "kept"  # or "huge" or "fresh", for all sides


def main(arguments: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n")[0], parents=[PAGES]
    )
    parser.add_argument("--cases", nargs="+", metavar="TEXT", help="how titles begin")
    parser.add_argument("--scale", type=float, default=1.0, help="of the channels")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for the CSV")
    args = parser.parse_args(arguments)
    chosen = [c for c in CASES if c.title.startswith(tuple(args.cases or [""]))]
    if not chosen:
        titles = "\n  ".join(case.title for case in CASES)
        raise SystemExit(f"no title begins with one of {args.cases}:\n  {titles}")
    crew = parallel.setup(args.workers)
    shapes = trees.named_tree("resnet50", args.scale)
    drawn = draw("gaussian", (args.workers, trees.elements(shapes)))
    updates = parallel.place(trees.cut(1e-3 * drawn, shapes), crew, 0)
    read = read_pass(crew, parallel.place({"w": drawn}, crew, 0))
    rivals = None if args.no_peers else torch_peers()
    plain, plain_facts = _ours(_BASELINE, shapes, updates, crew)
    print(_HEADER)
    rows = []
    for case in chosen:
        sides = {"read": read, "d_psgd": plain}
        facts = plain_facts
        if case != _BASELINE:
            sides["ours"], facts = _ours(case, shapes, updates, crew)
        if rivals and (round_ := _theirs(rivals, case, shapes, drawn)):
            sides["torch"] = round_
        row = _row(case, facts, in_turns(sides, args.repeats, warm_up=2))
        rows.append(row._replace(pages=args.pages))
        print(_line(rows[-1]), flush=True)
    print(
        f"{rows[0].elements:,} float32 on each of {args.workers} workers on a ring; "
        f"one read pass {rows[0].ms / rows[0].to_read:.1f} ms"
    )
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "gossip.csv", rows)
        print(f"wrote gossip.csv in {args.out}")
    return rows


def _ours(
    case: Case, shapes: trees.Shapes, updates: Any, crew: parallel.Workers
) -> tuple[Callable[[], tuple[float, float]], dict[str, Any]]:
    """A timed step of all workers, and the facts of its program."""
    mixer = jaxcomp.make_mixer(
        case.mixer,
        None if case.exchange else "ring",
        crew.size,
        compressor=case.compressor,
        exchange=case.exchange,
    )
    link = jaxcomp.mixing(mixer, seed=0, phase=mixer.schedule[-1])

    def step(own: PerWorker, updates: Any) -> PerWorker:
        params, state = own.value
        changes, state = link.update(updates, state, params)
        return PerWorker((jax.tree.map(jnp.add, params, changes), state))

    params = {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}
    state = parallel.spread(PerWorker((params, link.init(params))), crew)
    axes = parallel.axes(state)
    began = time.perf_counter()
    mapped = parallel.map_step(
        step, crew, in_axes=(axes, 0), out_axes=axes, donate_argnums=(0,)
    )
    compiled = mapped.lower(state, updates).compile()
    compile_s = time.perf_counter() - began
    holder = [state]
    del state  # its memory is given away by the first step

    def run() -> tuple[float, float]:
        began = time.perf_counter()
        holder[0] = jax.block_until_ready(compiled(holder[0], updates))
        return time.perf_counter() - began, 0.0

    found = compiled.memory_analysis()
    size = trees.elements(shapes)
    facts = {
        "elements": size,
        "workers": crew.size,
        "compile_s": compile_s,
        "memory": (found.temp_size_in_bytes + found.output_size_in_bytes) / (4 * size),
        "sent": sum(wire.collective_bytes(compiled).values()),
        "messages": sum(c.times for c in wire.collectives(compiled)),
    }
    return run, facts


def _theirs(
    rivals: Any, case: Case, shapes: trees.Shapes, drawn: np.ndarray
) -> Callable[[], tuple[float, float]] | None:
    """A timed round of CHOCO in PyTorch; None for other methods."""
    if case.mixer != "choco":
        return None
    torch = rivals.torch
    ring = jaxcomp.topology("ring", len(drawn)).rounds[0]
    sizes = [math.prod(shape) for shape in shapes.values()]
    codecs = [rivals.make(case.compressor, (size,)) for size in sizes]
    if None in codecs:
        return None
    rows = [torch.from_numpy(1e-3 * row).split(sizes) for row in drawn]

    def zeros() -> list[list[Any]]:
        return [[torch.zeros(size) for size in sizes] for _ in rows]

    x, public, total = zeros(), zeros(), zeros()

    def run() -> tuple[float, float]:
        began = time.perf_counter()
        with torch.no_grad():
            _choco_round(codecs, ring, rows, x, public, total)
        return time.perf_counter() - began, 0.0

    return run


def _choco_round(
    codecs: Sequence[Any], ring: Round, updates: Any, x: Any, public: Any, total: Any
) -> None:
    """A round as in the original code, which keeps x_hat_i and sum_j w_ij x_hat_j."""
    workers = range(len(x))
    payloads = []
    for i in workers:
        payloads.append([])
        for leaf, codec in enumerate(codecs):
            x[i][leaf] += updates[i][leaf]
            payloads[i].append(codec.compress(x[i][leaf] - public[i][leaf]))
            public[i][leaf] += codec.decompress(payloads[i][leaf])
    for i in workers:
        for leaf, codec in enumerate(codecs):
            for j in np.flatnonzero(ring.matrix[i]):
                said = codec.decompress(payloads[j][leaf])
                total[i][leaf].add_(said, alpha=float(ring.matrix[i, j]))
            x[i][leaf].add_(total[i][leaf] - public[i][leaf], alpha=GAMMA)


def _row(
    case: Case, facts: dict[str, Any], seconds: dict[str, list[tuple[float, float]]]
) -> Row:
    ours = [first for first, _ in seconds.get("ours", seconds["d_psgd"])]
    torch = seconds.get("torch")
    return Row(
        method=case.title,
        ms=1e3 * statistics.median(ours),
        to_d_psgd=ratio(ours, seconds["d_psgd"]),
        to_read=ratio(ours, seconds["read"]),
        torch=1 / ratio(ours, torch) if torch else None,
        **facts,
    )


_HEADER = (
    f"{'':44} {'':>8} {'relative to':^13} {'torch':>6} {'com-':>6} {'memory':>6}"
    f" {'sent':>7} {'messa-':>6}\n"
    f"{'method':44} {'ms':>8} {'d_psgd':>6} {'read':>6} {'/ ours':>6} {'pile s':>6}"
    f" {'models':>6} {'%':>7} {'ges':>6}"
)


def _line(row: Row) -> str:
    share = 100 * row.sent / (4 * row.elements)
    torch = "-" if row.torch is None else f"{row.torch:.2f}"
    return (
        f"{row.method:44} {row.ms:8.1f} {row.to_d_psgd:6.2f} {row.to_read:6.1f}"
        f" {torch:>6} {row.compile_s:6.1f} {row.memory:6.1f} {share:7.3f}"
        f" {row.messages:6d}"
    )


if __name__ == "__main__":
    with_pages("benchmarks.gossip", main)
