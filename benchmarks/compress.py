"""How long do compress and decompress take, and against what?

Every method runs in turns with its PyTorch peer, with one read pass over the vector
(what memory allows) and with one copy (what writing a fresh vector costs), so that a
busy machine slows all of them. Medians of the turns; compilation is not in them.

    python -m benchmarks.compress --out build
    python -m benchmarks.compress --methods sign "top_k(keep=0.01)" --data gaussian

A method is one line in CASES; what is not there is run with its defaults. Without torch
the ratios are left out. A fresh page costs more than the arithmetic on it, so all sides
keep the memory that they free, and the floors are those of such runs; --pages chooses
otherwise and writes compress_fresh.csv or compress_huge.csv.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks import style
from benchmarks.common import (
    PAGES,
    in_turns,
    others,
    torch_peers,
    with_pages,
    write_csv,
)
from benchmarks.vectors import draw
from jaxcomp import compressors, make_compressor, nbits


class Case(NamedTuple):
    """A method, and the speed that it has to reach."""

    spec: str
    floor: float | None = None  # PyTorch's time / ours, at least
    copies: float | None = None  # compress and decompress in copies, at most
    on: str = "vector"  # vector | matrix | rotation: see `shape_of`


CASES = (
    Case("top_k(keep=0.001)", floor=4, copies=4.5),
    Case("top_k(keep=0.01)", floor=6),
    Case("block_top_k(keep=0.01)"),
    Case("dgc_top_k(keep=0.001)", floor=2, copies=2.2),
    Case("threshold(v=3.0)"),
    Case("adaptive_threshold"),
    Case("random_k(keep=0.01)"),
    Case("rotating_slice(keep=0.01)"),
    Case("qsgd_sparse"),
    Case("sign", floor=2.2, copies=2.2),
    Case("qsgd(levels=127, bucket=512)", floor=6, copies=4),
    Case("qsgd(levels=7, bucket=512)"),
    Case("terngrad", floor=5),
    Case("natural"),
    Case("cast(dtype='bfloat16')"),
    Case("block_scaled(bits=8)"),
    Case("block_scaled(bits=4)"),
    Case("eden(bits=1)", floor=10, on="rotation"),
    Case("eden(bits=4)", on="rotation"),
    Case("eden(bits=1, unbiased=False)"),
    Case("svd(rank=4)", floor=1, on="matrix"),
    Case("atomo(rank=4)", floor=1, on="matrix"),
    Case("qsvd(rank=4)", on="matrix"),
    Case("count_sketch(ratio=0.1)"),
    Case("top_k(keep=0.001) | qsgd(levels=127)"),
)

MEMORY_BOUND = 3.0  # times the vector
UNBOUNDED = ("atomo", "count_sketch", "qsvd", "svd")  # may take more
ROTATION = 4_194_304  # coordinates where EDEN's own package is compared
SIDE = 2000  # of the matrix for low rank


class Row(NamedTuple):
    """One line of the table and the CSV. Times are in ms, None if not measured."""

    method: str
    data: str
    elements: int
    compile_s: float
    compress: float
    decompress: float
    both: float
    read_pass: float
    copy: float
    torch_both: float | None
    torch_ratio: float | None
    tuned_both: float | None
    tuned_ratio: float | None
    floor: float | None
    met: str
    compress_memory: float  # temporaries and output, in vectors
    decompress_memory: float
    bits: float  # per element
    torch_bits: float | None
    error: float  # |x - C(x)|^2 / |x|^2
    torch_error: float | None
    pages: str  # "kept", "huge" or "fresh", for all sides


def main(arguments: list[str] | None = None) -> list[Row]:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(description=about, parents=[PAGES])
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--methods", nargs="+", metavar="SPEC", help="only these")
    parser.add_argument("--data", nargs="+", default=["gaussian", "heavy"])
    parser.add_argument("--out", type=Path, help="folder for the CSV and the plot")
    args = parser.parse_args(arguments)
    peers = torch_peers()
    print(_HEADER)
    rows: list[Row] = []
    for case in _chosen(args.methods):
        for row in measure(case, args, peers):
            rows.append(row)
            print(_line(row), flush=True)
    _conclude(rows)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        name = "compress" if args.pages == "kept" else f"compress_{args.pages}"
        write_csv(args.out / f"{name}.csv", rows)
        draw_plot(args.out / f"{name}.png", rows)
        print(f"wrote {name}.csv and {name}.png in {args.out}")
    return rows


def shape_of(case: Case, size: int) -> tuple[int, ...]:
    """Shape of what a case compresses: a vector, or what its peer or method needs."""
    if case.on == "matrix":
        side = min(SIDE, math.isqrt(size))
        return (side, side)
    return (min(size, ROTATION),) if case.on == "rotation" else (size,)


def measure(case: Case, args: argparse.Namespace, peers: Any) -> list[Row]:
    """One row for each kind of data; the programs are compiled once."""
    shape = shape_of(case, args.size)
    compressor = make_compressor(case.spec)
    spec = jax.ShapeDtypeStruct(shape, jnp.float32)
    state, key = compressor.init(spec), jax.random.key(0)
    began = time.perf_counter()
    compress = jax.jit(compressor.compress).lower(spec, state, key).compile()
    payload_spec = jax.eval_shape(compressor.compress, spec, state, key)[0]
    decode = jax.jit(lambda payload: compressor.decompress(payload, spec))
    decompress = decode.lower(payload_spec).compile()
    compile_seconds = time.perf_counter() - began
    rows = []
    for name in args.data:
        x = draw(name, shape)
        runners = {
            "ours": _ours(compress, decompress, jnp.asarray(x), state, key),
            **_references(jnp.asarray(x)),
            **_their(case.spec, x, peers),
        }
        sides = {who: runner.run for who, runner in runners.items()}
        seconds = in_turns(sides, args.repeats)
        rows.append(
            _row(
                case,
                name,
                compile_seconds,
                seconds,
                [_memory(compress, x), _memory(decompress, x)],
                {who: r.check() for who, r in runners.items()},
                x.size,
                args.pages,
            )
        )
    return rows


class Runner(NamedTuple):
    """One of the programs that are timed in turns."""

    run: Callable[[], tuple[float, float]]  # seconds to compress, to decompress
    check: Callable[[], tuple[float, float]]  # bits sent, error of the result


def _ours(
    compress: Callable[..., Any],
    decompress: Callable[..., Any],
    x: jax.Array,
    state: Any,
    key: jax.Array,
) -> Runner:
    def run() -> tuple[float, float]:
        first, (payload, _) = _timed(compress, x, state, key)
        second, _ = _timed(decompress, payload)
        return first, second

    def check() -> tuple[float, float]:
        payload, _ = compress(x, state, key)
        return nbits(payload), _error(np.asarray(x), np.asarray(decompress(payload)))

    return Runner(run, check)


def _references(x: jax.Array) -> dict[str, Runner]:
    """A pass that reads the vector, and one that also writes a new vector."""
    total, negative = jax.jit(jnp.sum), jax.jit(jnp.negative)

    def run() -> tuple[float, float]:
        return _timed(total, x)[0], _timed(negative, x)[0]

    return {"memory": Runner(run, lambda: (0.0, 0.0))}


def _their(spec: str, x: np.ndarray, peers: Any) -> dict[str, Runner]:
    found = {}
    for name, tuned in (("torch", False), ("tuned", True)):
        peer = peers and _peer(peers, spec, x.shape, tuned)
        if peer:
            found[name] = _theirs(peer, peers, x)
    return found


def _theirs(peer: Any, peers: Any, array: np.ndarray) -> Runner:
    x = peers.to_torch(array.reshape(-1))
    quietly = peers.torch.inference_mode

    def run() -> tuple[float, float]:
        with quietly():
            first, payload = _timed(peer.compress, x)
            second, _ = _timed(peer.decompress, payload)
        return first, second

    def check() -> tuple[float, float]:
        with quietly():
            payload = peer.compress(x)
            output = peer.decompress(payload).reshape(-1).numpy()
        return peers.nbits(payload), _error(array.reshape(-1), output)

    return Runner(run, check)


def _peer(peers: Any, spec: str, shape: tuple[int, ...], tuned: bool) -> Any:
    try:
        return peers.make(spec, shape, tuned)
    except ModuleNotFoundError as error:
        print(f"no peer for {spec}: package {error.name} is not installed")
        return None


def _timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return time.perf_counter() - began, result


def _row(
    case: Case,
    data: str,
    compile_seconds: float,
    seconds: dict[str, list[tuple[float, float]]],
    memory: list[float],
    checks: dict[str, tuple[float, float]],
    elements: int,
    pages: str,
) -> Row:
    first, second = _medians(seconds["ours"])
    both = _both(seconds["ours"])
    read, copy = _medians(seconds["memory"])
    torch_both = _both(seconds["torch"]) if "torch" in seconds else None
    tuned_both = _both(seconds["tuned"]) if "tuned" in seconds else None
    ratio = _ratio(seconds.get("torch"), seconds["ours"])
    tuned = _ratio(seconds.get("tuned"), seconds["ours"])
    return Row(
        method=case.spec,
        data=data,
        elements=elements,
        compile_s=compile_seconds,
        compress=first,
        decompress=second,
        both=both,
        read_pass=read,
        copy=copy,
        torch_both=torch_both,
        torch_ratio=ratio,
        tuned_both=tuned_both,
        tuned_ratio=tuned,
        floor=case.floor,
        met=_verdict(case, ratio, tuned, both / copy),
        compress_memory=memory[0],
        decompress_memory=memory[1],
        bits=checks["ours"][0] / elements,
        torch_bits=checks["torch"][0] / elements if "torch" in checks else None,
        error=checks["ours"][1],
        torch_error=checks["torch"][1] if "torch" in checks else None,
        pages=pages,
    )


def _verdict(
    case: Case, ratio: float | None, tuned: float | None, copies: float
) -> str:
    """Which of the required speeds are met; empty if none is required."""
    if case.floor is None or ratio is None:
        return ""
    missed = [f"{case.floor:g}x"] if ratio < case.floor else []
    if case.copies is not None and copies > case.copies:
        missed.append(f"{case.copies:g} copies")
    if missed:
        return f"MISSED {', '.join(missed)}"
    return "met" if tuned is None or tuned >= case.floor else "met, but by tuned"


def _medians(seconds: list[tuple[float, float]]) -> tuple[float, float]:
    firsts, seconds_ = zip(*seconds, strict=True)
    return 1e3 * statistics.median(firsts), 1e3 * statistics.median(seconds_)


def _both(seconds: list[tuple[float, float]]) -> float:
    return 1e3 * statistics.median(a + b for a, b in seconds)


def _ratio(
    theirs: list[tuple[float, float]] | None, ours: list[tuple[float, float]]
) -> float | None:
    """The median over turns of the ratio of whole times; see `common.ratio`."""
    if theirs is None:
        return None
    turns = zip(theirs, ours, strict=True)
    return statistics.median(sum(their) / sum(own) for their, own in turns)


def _memory(compiled: Any, x: np.ndarray) -> float:
    """Temporaries and output of a program, as a multiple of the vector."""
    found = compiled.memory_analysis()
    return (found.temp_size_in_bytes + found.output_size_in_bytes) / x.nbytes


def _error(x: np.ndarray, y: np.ndarray) -> float:
    """|x - y|^2 / |x|^2, scaled first because squares may overflow float32."""
    scale = np.abs(x).max()
    off = np.subtract(x, y) / scale
    return float(np.sum(off * off, dtype=np.float64)) / float(
        np.sum(np.square(x / scale), dtype=np.float64)
    )


def _chosen(methods: list[str] | None) -> list[Case]:
    """All cases and all other registered methods, or those that were asked for."""
    known = {make_compressor(case.spec).name: case for case in CASES}
    if methods:
        names = [make_compressor(spec).name for spec in methods]
        return [known.get(n, Case(s)) for n, s in zip(names, methods, strict=True)]
    rest = others((case.spec for case in CASES), compressors.REGISTRY)
    return [*CASES, *map(Case, rest)]


# --- What is shown --------------------------------------------------------------------

_HEADER = (
    f"{'':38} {'':9} {'ms':^23}  {'read passes':^11}  {'PyTorch / ours':^14}"
    f"  {'':22} {'memory':^9}\n"
    f"{'method':38} {'data':9} {'compr':>7} {'decom':>7} {'both':>7}  {'compr':>5}"
    f" {'both':>5}  {'plain':>6}  {'tuned':>6}  {'floor':22} {'compr':>4}"
    f" {'dec':>4} {'bits':>7} {'error':>9} {'compile':>7}"
)


def _line(row: Row) -> str:
    floor = "" if row.floor is None else f"{row.floor:g}x {row.met}"
    return (
        f"{row.method:38} {row.data:9} {row.compress:7.1f} {row.decompress:7.1f}"
        f" {row.both:7.1f}  {row.compress / row.read_pass:5.1f}"
        f" {row.both / row.read_pass:5.1f}  {_times(row.torch_ratio):>6}"
        f"  {_times(row.tuned_ratio):>6}  {floor:22} {row.compress_memory:5.1f}"
        f" {row.decompress_memory:4.1f} {row.bits:7.3f} {row.error:9.3g}"
        f" {row.compile_s:6.1f}s"
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}x"


def _conclude(rows: list[Row]) -> None:
    """Print which requirements are missed, and the speed of memory."""
    for row in rows:
        if row.met.startswith("MISSED"):
            print(f"missed: {row.method} on {row.data}: {row.met.split(' ', 1)[1]}")
    for method, worst in {
        row.method: max(row.compress_memory, row.decompress_memory) for row in rows
    }.items():
        if worst > MEMORY_BOUND and method.split("(")[0] not in UNBOUNDED:
            print(f"missed: {method}: {worst:.1f} vectors of memory")
    whole = [row for row in rows if row.elements == max(r.elements for r in rows)]
    read = statistics.median(row.read_pass for row in whole)
    copy = statistics.median(row.copy for row in whole)
    print(
        f"{whole[0].elements:,} float32: one read pass {read:.2f} ms, one copy"
        f" {copy:.2f} ms"
    )


def draw_plot(file: Path, rows: list[Row]) -> None:
    """Bars of compress + decompress in read passes, a panel for each kind of data."""
    panels = list(dict.fromkeys(row.data for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    with style.look():
        figure = Figure(figsize=(3 + 5 * len(panels), 1.7 + 0.34 * len(methods)))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, name in zip(axes, panels, strict=True):
            _draw_panel(ax, [row for row in rows if row.data == name])
            ax.set_title(name)
        axes[0].set_yticks(range(len(methods)), methods)
        axes[0].set_ylim(len(methods) - 0.4, -0.6)  # the first method on top
        handles, labels = axes[0].get_legend_handles_labels()
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))
        place = {"loc": "upper right", "ncols": len(labels), "frameon": False}
        figure.legend(handles, labels, **place)
        figure.savefig(file, dpi=130)


def _draw_panel(ax: Any, rows: list[Row]) -> None:
    # One unit for vectors of one size: a single row's read pass varies by a half.
    passes: dict[int, list[float]] = {}
    for row in rows:
        passes.setdefault(row.elements, []).append(row.read_pass)
    units = np.array([statistics.median(passes[row.elements]) for row in rows])
    places = np.arange(len(rows))
    ours = np.array([row.both for row in rows]) / units
    theirs = np.array([row.torch_both or math.nan for row in rows]) / units
    tuned = np.array([row.tuned_both or math.nan for row in rows]) / units
    ax.barh(places - 0.2, ours, 0.38, color=style.BLUE, label="jaxcomp")
    ax.barh(places + 0.2, theirs, 0.38, color=style.YELLOW, label="PyTorch or peer")
    tick = {"color": style.INK, "ms": 9, "mew": 2}
    ax.plot(tuned, places + 0.2, "|", label="PyTorch, tuned", **tick)
    for place, row in zip(places, rows, strict=True):
        if row.torch_ratio:
            floor = f" (floor {row.floor:g})" if row.floor else ""
            end = np.nanmax([ours[place], theirs[place]])
            text = f"{row.torch_ratio:.1f}x{floor}"
            ax.text(1.1 * end, place, text, va="center", fontsize=7.5)
    copies = np.median(np.array([row.copy for row in rows]) / units)
    ax.axvline(copies, color=style.GREY, lw=1, ls=":", label="a copy of the vector")
    ax.set_xscale("log")
    ax.set_xlim(1, 6 * np.nanmax([*ours, *theirs]))
    ax.set_xlabel("compress + decompress, in read passes over the vector")
    ax.grid(axis="y", visible=False)


if __name__ == "__main__":
    with_pages("benchmarks.compress", main)
