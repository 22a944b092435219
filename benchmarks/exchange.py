"""What does a whole exchange cost: memory, compressor, collectives and decoding?

Every method exchanges the gradient of a ResNet-50 between virtual CPU devices, in turns
with `exact` and with a read pass by all workers, each over its own tree. So a busy
machine slows all of them. State is fed back and its memory reused, as in training;
every step is waited for. Medians of the turns; compilation is not in them.

    python -m benchmarks.exchange --out build --python path/to/python/with/torch
    python -m benchmarks.exchange --cases power_sgd exact --scale 0.3

PyTorch's DDP hooks run in the same turns, in processes of their own: peers_ddp.py says
what is timed there. A method is one line in CASES; what is not there is run with its
defaults. A fresh page costs more than the arithmetic on it, so all sides keep the
memory that they free; --pages chooses otherwise.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks import peers_ddp, style, trees
from benchmarks.common import (
    PAGES,
    in_turns,
    others,
    ratio,
    read_pass,
    timed,
    with_pages,
    write_csv,
)
from benchmarks.vectors import draw
from jaxcomp import exchanges, make_exchange, parallel, wire
from jaxcomp.exchanges._common import with_method
from jaxcomp.scope import lift


class Case(NamedTuple):
    """An exchange, the tree on which it is timed, and with which peers."""

    exchange: str
    compressor: str = "none"
    memory: str = "error_feedback"
    scope: str = "per_leaf"
    tree: str = "resnet50"
    heat: str = ""  # cases of one heat run in the same turns
    peers: tuple[str, ...] = ()  # names in `peers_ddp.HOOKS`

    @property
    def title(self) -> str:
        """Exchange and compressor, and what is not the usual."""
        none = self.compressor == "none"
        name = self.exchange if none else with_method(self.exchange, self.compressor)
        usual = Case(self.exchange)
        memory = "" if self.memory in (usual.memory, "none") else f"{self.memory}: "
        scope = "" if self.scope == usual.scope else f", {self.scope}"
        tree = "" if self.tree == usual.tree else f", {self.tree}"
        return memory + name + scope + tree


_LIGHT = "top_k(keep=0.001)"  # of the first two floors
_DENSE = Case("exact", memory="none", peers=("all-reduce", "fp16"))

CASES = (
    _DENSE,
    Case("gather", _LIGHT, heat="tree or vector"),
    Case("gather", _LIGHT, scope="whole_tree", heat="tree or vector"),
    Case("gather", _LIGHT, tree="flat", heat="tree or vector"),
    Case("gather", _LIGHT, memory="dgc"),
    Case("gather", "top_k(keep=0.01)"),
    Case("gather", "sign"),
    # Unbiased: nothing has to be kept.
    Case("gather", "qsgd(levels=7)", memory="none"),
    Case("aligned_psum", "random_k(keep=0.01)"),
    Case("two_phase", "qsgd(levels=7)", memory="none"),
    Case("two_phase", "sign"),
    Case("two_phase", "top_k(keep=0.01)"),
    Case("sparse_reduce", "top_k(keep=0.01)"),
    Case(
        "power_sgd(rank=2)",
        peers=("PowerSGD(rank=2)", "PowerSGD(rank=2), batched"),
    ),
    Case(
        "power_sgd(rank=4)",
        peers=("PowerSGD(rank=4)", "PowerSGD(rank=4), batched"),
    ),
    Case("majority_vote", memory="none"),  # no memory can keep what it loses
    Case("shared_scale", memory="none"),  # unbiased
    Case("hierarchical(per_host=2)", "top_k(keep=0.01)"),
    Case("simulated", "top_k(keep=0.01)"),
    # Four bits an element; "sign" stands for the tensors that have a choice.
    Case("budget(bits_per_step=100000000)", "sign"),
)
CASES += tuple(map(Case, others((c.exchange for c in CASES), exchanges.REGISTRY)))

_UNKNOWN = dict.fromkeys(("compile_s", "memory", "sent", "collectives"))
COUNTS = (2, 4, 8, 16)  # payloads that are decoded together


class Row(NamedTuple):
    """One line of the table and the CSV. None if it is not known of a peer."""

    method: str
    who: str  # jaxcomp | PyTorch
    tree: str
    elements: int
    workers: int
    ms: float  # of a step; of a peer, without its backward pass
    to_exact: float
    to_read: float
    backward_ms: float | None  # of a peer: taken off
    compile_s: float | None
    memory: float | None  # temporaries and output of a worker, in trees
    sent: int | None  # bytes that a worker hands to its collectives
    by_kind: str
    collectives: int | None
    pages: str = "kept"  # or "huge" or "fresh", for all sides


class Decoding(NamedTuple):
    """Time of `decompress_sum` of N payloads: a + b N, in ms."""

    tree: str
    counts: tuple[int, ...]
    ms: tuple[float, ...]
    dense_ms: float  # one pass that adds a tree to another
    a: float
    b: float


class Floor(NamedTuple):
    """A ratio that has to be reached, and the one that was measured."""

    what: str
    value: float
    limit: float
    least: bool  # whether the limit is the least value, not the most

    @property
    def met(self) -> bool:
        if self.least:
            return self.value >= self.limit
        return self.value <= self.limit

    def __str__(self) -> str:
        side, verdict = (
            "least" if self.least else "most",
            "met" if self.met else "MISSED",
        )
        return f"{self.what}: {self.value:.3g}x, at {side} {self.limit:g}x: {verdict}"


def main(arguments: list[str] | None = None) -> list[Row]:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    parser.add_argument("--cases", nargs="+", metavar="TEXT", help="titles with these")
    parser.add_argument("--scale", type=float, default=1.0, help="of the channels")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", default="gaussian")
    parser.add_argument("--python", default=sys.executable, help="that has torch")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-decoding", action="store_true", help="skip decoding")
    parser.add_argument("--out", type=Path, help="folder for the CSV and the plot")
    args = parser.parse_args(arguments)
    chosen = _chosen(args.cases)
    crew = parallel.setup(args.workers)
    with_peers = not args.no_peers and peers_ddp.has_torch(args.python)
    if not with_peers:
        print("no peers: own figures alone (--python names an interpreter with torch)")
    race = _race(chosen, crew, args)
    print(_HEADER)
    rows: list[Row] = []
    for cases in _heats(chosen):
        for row in measure(cases, race, args, with_peers):
            if row.method in {r.method for r in rows}:
                continue  # `exact` runs in every heat
            rows.append(row._replace(pages=args.pages))
            print(_line(row), flush=True)
    del race
    decoded = [] if args.no_decoding else decode(args)
    _conclude(rows, decoded)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "exchange.csv", rows)
        draw_plot(args.out / "exchange.png", rows)
        print(f"wrote exchange.csv and exchange.png in {args.out}")
    return rows


# --- The race -------------------------------------------------------------------------


class Runner(NamedTuple):
    """One of the programs that are timed in turns."""

    run: Callable[
        [], tuple[float, float]
    ]  # seconds of a step, and of what is taken off
    facts: dict[str, Any] = {}  # fields of its row


class Race(NamedTuple):
    """What is timed against every case, and on which data."""

    crew: parallel.Workers
    shapes: dict[str, trees.Shapes]
    inputs: dict[str, Any]  # of each tree, on the devices
    read: Runner
    exact: Runner


def measure(
    cases: list[Case], race: Race, args: argparse.Namespace, with_peers: bool
) -> list[Row]:
    """Time some cases and their peers in the same turns; a row for each."""
    with contextlib.ExitStack() as stack:
        runners = {"read": race.read, _DENSE.title: race.exact}
        for case in cases:
            if case != _DENSE:
                runners[case.title] = _ours(case, race)
            for hook in case.peers if with_peers else ():
                shapes = race.shapes[case.tree].values()
                runners[f"DDP: {hook}"] = _theirs(hook, shapes, args, stack)
        seconds = _in_turns(runners, args.repeats)
    order = [c.title for c in cases]
    order += [name for name in runners if name not in (*order, "read", _DENSE.title)]
    return [_row(name, runners[name], seconds, race) for name in order]


def _ours(case: Case, race: Race) -> Runner:
    """Compile an exchange for all workers; each run passes its state to the next."""
    crew, inputs = race.crew, race.inputs[case.tree]
    exchange = make_exchange(
        case.exchange, case.compressor, case.memory, case.scope, crew.axis
    )
    base = jax.random.key(0)

    def step(state: Any, tree: Any) -> Any:
        count, inner = state
        key = jax.random.fold_in(base, count)
        mean, _, inner, info, *_ = exchange.average(tree, inner, key)
        return mean, info, (count + 1, inner)

    fresh = (jnp.int32(0), exchange.init(_spec(race.shapes[case.tree])))
    state = parallel.spread(fresh, crew)
    axes = parallel.axes(state)
    began = time.perf_counter()
    compiled = (
        parallel.map_step(
            step,
            crew,
            in_axes=(axes, 0),
            out_axes=(None, 0, axes),
            donate_argnums=(0,),
        )
        .lower(state, inputs)
        .compile()
    )
    compile_s = time.perf_counter() - began
    holder = [state]
    del state  # its memory is given away by the first step

    def run() -> tuple[float, float]:
        began = time.perf_counter()
        *results, holder[0] = compiled(holder[0], inputs)
        jax.block_until_ready((results, holder[0]))
        return time.perf_counter() - began, 0.0

    found = compiled.memory_analysis()
    sent = wire.collective_bytes(compiled)
    facts = {
        "who": "jaxcomp",
        "tree": case.tree,
        "compile_s": compile_s,
        "memory": (found.temp_size_in_bytes + found.output_size_in_bytes)
        / (4 * trees.elements(race.shapes[case.tree])),
        "sent": sum(sent.values()),
        "by_kind": " ".join(f"{kind}={count}" for kind, count in sorted(sent.items())),
        "collectives": sum(c.times for c in wire.collectives(compiled)),
    }
    return Runner(run, facts)


def _theirs(
    hook: str,
    shapes: Iterable[tuple[int, ...]],
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> Runner:
    # PyTorch has the outputs first; the sides of the matrices stay what they are.
    outputs_first = [shape[::-1] for shape in shapes]
    peer = peers_ddp.start(hook, outputs_first, args.workers, args.python)
    stack.callback(peer.close)
    return Runner(peer.run, {"who": "PyTorch", "tree": "resnet50", "by_kind": ""})


def _race(cases: list[Case], crew: parallel.Workers, args: argparse.Namespace) -> Race:
    """Place gradients on the devices: drawn once, and different on each worker."""
    names = {"resnet50", *(case.tree for case in cases)}
    shapes = {name: trees.named_tree(name, args.scale) for name in sorted(names)}
    size = trees.elements(shapes["resnet50"])
    local = crew.local.stop - crew.local.start
    drawn = draw(args.data, (local, size))
    inputs = {
        name: parallel.place(trees.cut(drawn, tree), crew, 0)
        for name, tree in shapes.items()
    }
    # The flat read pass: of many small tensors each costs a call.
    vector = inputs.get("flat") or parallel.place({"w": drawn}, crew, 0)
    race = Race(crew, shapes, inputs, Runner(read_pass(crew, vector)), Runner(_nothing))
    return race._replace(exact=_ours(_DENSE, race))


def _nothing() -> tuple[float, float]:
    return 0.0, 0.0


def _spec(shapes: trees.Shapes) -> Any:
    return {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}


def _in_turns(
    runners: dict[str, Runner], repeats: int
) -> dict[str, list[tuple[float, float]]]:
    # The second run finds its state where it stays.
    sides = {name: runner.run for name, runner in runners.items()}
    return in_turns(sides, repeats, warm_up=2)


def _row(
    name: str,
    runner: Runner,
    seconds: dict[str, list[tuple[float, float]]],
    race: Race,
) -> Row:
    own = [whole - off for whole, off in seconds[name]]
    off = 1e3 * statistics.median(off for _, off in seconds[name])
    facts: dict[str, Any] = {**_UNKNOWN, **runner.facts}
    return Row(
        method=name,
        elements=trees.elements(race.shapes["resnet50"]),
        workers=race.crew.size,
        ms=1e3 * statistics.median(own),
        to_exact=ratio(own, seconds[_DENSE.title]),
        to_read=ratio(own, seconds["read"]),
        backward_ms=off if facts["who"] == "PyTorch" else None,
        **facts,
    )


def _chosen(texts: list[str] | None) -> list[Case]:
    """All cases, or those whose titles contain one of the texts."""
    if not texts:
        return list(CASES)
    for text in texts:
        if not any(text in case.title for case in CASES):
            titles = "\n  ".join(case.title for case in CASES)
            raise SystemExit(f"no case has {text!r} in its title:\n  {titles}")
    return [c for c in CASES if any(text in c.title for text in texts)]


def _heats(cases: list[Case]) -> list[list[Case]]:
    heats: dict[str, list[Case]] = {}
    for case in cases:
        heats.setdefault(case.heat or case.title, []).append(case)
    return list(heats.values())


# --- Decoding -------------------------------------------------------------------------


def decode(args: argparse.Namespace) -> list[Decoding]:
    """Time of decoding N sparse payloads into one sum, on one device."""
    return [_decode(name, args) for name in ("flat", "resnet50")]


def _decode(name: str, args: argparse.Namespace) -> Decoding:
    shapes = trees.named_tree(name, args.scale)
    spec, codec = _spec(shapes), lift("per_leaf", _LIGHT)
    vector = draw(args.data, (trees.elements(shapes),))
    compress = jax.jit(codec.compress)
    key, state = jax.random.key(0), codec.init(spec)
    payloads = []
    for i in range(max(COUNTS)):
        # Rolled, so that every payload has other places.
        tree = jax.tree.map(
            lambda x: x[0], trees.cut(np.roll(vector, 997 * i)[None], shapes)
        )
        payloads.append(compress(tree, state, key)[0])
    runners: dict[str, Runner] = {"dense": _dense_add(vector)}
    for count in COUNTS:
        few = jax.tree.map(lambda *xs: jnp.stack(xs), *payloads[:count])
        sum_ = jax.jit(lambda payloads: codec.decompress_sum(payloads, spec))
        runners[str(count)] = Runner(timed(sum_.lower(few).compile(), few))
    seconds = _in_turns(runners, max(3, args.repeats))
    median = {
        which: 1e3 * statistics.median(first for first, _ in times)
        for which, times in seconds.items()
    }
    ms = tuple(median[str(count)] for count in COUNTS)
    b, a = np.polyfit(COUNTS, ms, 1)
    return Decoding(name, COUNTS, ms, median["dense"], float(a), float(b))


def _dense_add(vector: np.ndarray) -> Runner:
    """Add x to a total in place, which is what a dense payload would cost."""
    add = jax.jit(jnp.add, donate_argnums=(0,))
    x, holder = jnp.asarray(vector), [jnp.zeros(vector.shape, jnp.float32)]

    def run() -> tuple[float, float]:
        began = time.perf_counter()
        holder[0] = jax.block_until_ready(add(holder[0], x))
        return time.perf_counter() - began, 0.0

    return Runner(run)


# --- What is shown --------------------------------------------------------------------


def floors(rows: list[Row], decoded: list[Decoding]) -> list[Floor]:
    """The ratios that have to be reached, as far as they were measured."""
    ms = {row.method: row.ms for row in rows}
    tree, vector = (
        Case("gather", _LIGHT, tree=name).title for name in ("resnet50", "flat")
    )
    result = []
    if tree in ms and vector in ms:
        what = f"{tree} on the tree / on one vector"
        result.append(Floor(what, ms[tree] / ms[vector], 1.3, least=False))
    for fit in decoded:
        what = f"decoding one more payload ({fit.tree}) / a dense pass that adds"
        result.append(Floor(what, fit.b / fit.dense_ms, 0.1, least=False))
    ours = "power_sgd(rank=2)"
    theirs = {n: t for n, t in ms.items() if n.startswith("DDP: PowerSGD(rank=2)")}
    if ours in ms and theirs:
        best = min(theirs, key=theirs.__getitem__)
        what = f"{best} / {ours}"
        result.append(Floor(what, theirs[best] / ms[ours], 3, least=True))
    return result


_HEADER = (
    f"{'':42} {'':>9} {'relative to':^13} {'back-':>8} {'com-':>6} {'memory':>6}"
    f" {'sent':>7} {'collec-':>7}\n"
    f"{'method':42} {'ms':>9} {'exact':>6} {'read':>6} {'ward ms':>8} {'pile s':>6}"
    f" {'trees':>6} {'%':>7} {'tives':>7}  bytes by kind"
)


def _line(row: Row) -> str:
    share = None if row.sent is None else 100 * row.sent / (4 * row.elements)
    return (
        f"{row.method:42} {row.ms:9.1f} {row.to_exact:6.2f} {row.to_read:6.1f}"
        f" {_shown(row.backward_ms, '.1f'):>8} {_shown(row.compile_s, '.1f'):>6}"
        f" {_shown(row.memory, '.1f'):>6} {_shown(share, '.3f'):>7}"
        f" {_shown(row.collectives, 'd'):>7}  {row.by_kind}"
    )


def _shown(value: float | int | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _conclude(rows: list[Row], decoded: list[Decoding]) -> None:
    for row in rows:
        if row.method == _DENSE.title:
            print(
                f"{row.elements:,} float32 on each of {row.workers} workers: one read"
                f" pass {row.ms / row.to_read:.1f} ms, exact {row.ms:.1f} ms"
            )
    for fit in decoded:
        times = ", ".join(f"{t:.1f}" for t in fit.ms)
        print(
            f"decoding {', '.join(map(str, fit.counts))} payloads of {_LIGHT} on one"
            f" device ({fit.tree}): {times} ms = {fit.a:.2f} + {fit.b:.3f} N; a dense"
            f" pass that adds {fit.dense_ms:.2f} ms"
        )
    for floor in floors(rows, decoded):
        print(floor)


def draw_plot(file: Path, rows: list[Row]) -> None:
    """Bars: the time of a step, and the bytes of a worker."""
    methods = [row.method for row in rows]
    places = np.arange(len(rows))
    colours = [style.BLUE if row.who == "jaxcomp" else style.YELLOW for row in rows]
    shares = [100 * (row.sent or 0) / (4 * row.elements) for row in rows]
    with style.look():
        figure = Figure(figsize=(11, 1.6 + 0.34 * len(rows)))
        time_ax, bytes_ax = figure.subplots(1, 2, sharey=True)
        time_ax.barh(places, [row.ms for row in rows], 0.7, color=colours)
        time_ax.set_title("time of a step")
        time_ax.set_xlabel("ms; of PyTorch (yellow) without the backward pass")
        bytes_ax.barh(places, shares, 0.7, color=colours)
        bytes_ax.set_title("handed over by a worker")
        bytes_ax.set_xlabel("% of the uncompressed gradient")
        for place, row, share in zip(places, rows, shares, strict=True):
            small = {"va": "center", "fontsize": 7.5}
            time_ax.text(1.1 * row.ms, place, f"{row.to_exact:.2g}x exact", **small)
            text = f"{share:.3g}" if row.sent is not None else "not measured"
            bytes_ax.text(1.1 * (share or 0.1), place, text, **small)
        time_ax.set_xlim(min(r.ms for r in rows) / 3, 6 * max(r.ms for r in rows))
        bytes_ax.set_xlim(0.05, 500)
        time_ax.set_yticks(places, methods)
        time_ax.set_ylim(len(rows) - 0.4, -0.6)  # the first method on top
        for ax in (time_ax, bytes_ax):
            ax.set_xscale("log")
            ax.grid(axis="y", visible=False)
        figure.tight_layout()
        figure.savefig(file, dpi=130)


if __name__ == "__main__":
    with_pages("benchmarks.exchange", main)
