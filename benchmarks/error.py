"""How much error does a bit buy? Normalised error against bits sent, for all methods.

Error is E|x - C(x)|^2 / |x|^2, bits are those of the payload's arrays for each element.
No code for a Gaussian source can be below 4^-R at R bits: Shannon's bound, drawn in.

    python -m benchmarks.gradients --out build/gradients.npz
    python -m benchmarks.error --gradients build/gradients.npz --out build

Also checks what theory pins on Gaussian vectors, and fails where it is off by 1 %. A
method is one line in LINES; what is not there is run with its defaults.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks import gradients, style
from benchmarks.common import others, write_csv
from benchmarks.vectors import draw
from jaxcomp import compressors, make_compressor, nbits
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import Compressor


class Line(NamedTuple):
    """A method over a range of one argument: a line of the plot."""

    family: str
    spec: str  # with {} where the argument stands
    values: tuple[Any, ...] = ("",)
    matrices: bool = False  # tensor by tensor instead of one vector of all

    def specs(self) -> list[str]:
        return [self.spec.format(value) for value in self.values]

    @property
    def label(self) -> str:
        return self.spec.replace("{}", "·").replace("{!r}", "·")


KEEP = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
LEVELS = (1, 3, 7, 15, 31, 127, 2047)
RANKS = (1, 2, 4, 8, 16)

LINES = (
    Line("sparse", "top_k(keep={})", KEEP),
    Line("sparse", "block_top_k(keep={})", KEEP),
    Line("sparse", "dgc_top_k(keep={})", KEEP),
    Line("sparse", "threshold(v=0.001, cap={})", KEEP),
    Line("sparse", "adaptive_threshold(cap={})", (0.001, 0.01, 0.05)),
    Line("sparse", "random_k(keep={})", KEEP),
    Line("sparse", "random_k(keep={}, unbiased=True)", KEEP),
    Line("sparse", "rotating_slice(keep={})", KEEP),
    Line("sparse", "qsgd_sparse"),
    Line("quantised", "sign"),
    Line("quantised", "terngrad"),
    Line("quantised", "terngrad(bucket={})", (512, 4096)),
    Line("quantised", "natural"),
    Line("quantised", "cast(dtype={!r})", ("float8_e4m3fn", "bfloat16", "float16")),
    Line("quantised", "block_scaled(bits={})", (4, 8)),
    Line("quantised", "qsgd(levels={}, bucket=512)", LEVELS),
    Line("quantised", "qsgd(levels={}, bucket=512, norm='max')", LEVELS),
    Line("rotated", "eden(bits={})", (1, 2, 3, 4, 5, 6, 7, 8)),
    Line("rotated", "eden(bits={}, unbiased=False)", (1, 2, 3, 4, 5, 6, 7, 8)),
    Line("low rank", "svd(rank={})", RANKS, matrices=True),
    Line("low rank", "atomo(rank={})", RANKS, matrices=True),
    Line("low rank", "qsvd(rank={})", RANKS, matrices=True),
    Line("sketch", "count_sketch(ratio={})", (0.01, 0.03, 0.1, 0.3)),
    Line("composed", "top_k(keep={}) | qsgd(levels=7, norm='max')", KEEP),
    Line("composed", "top_k(keep={}) | eden(bits=2, unbiased=False)", KEEP),
)

# What theory says of long Gaussian vectors: (method, error).
THEORY = (
    ("eden(bits=1, unbiased=True)", math.pi / 2 - 1),
    ("eden(bits=1, unbiased=False)", 1 - 2 / math.pi),
    ("sign", 1 - 2 / math.pi),
)
THEORY_SIZE = 1 << 20  # chance alone moves the error by about 0.1 % there
TOLERANCE = 0.01

COLOURS = {
    "sparse": style.BLUE,
    "quantised": style.ORANGE,
    "rotated": style.GREEN,
    "low rank": style.PINK,
    "sketch": style.GREY,
    "composed": style.SKY,
    "other": style.YELLOW,
}
MARKERS = "osD^vPX*<>hp"


class Row(NamedTuple):
    """One point of the plot and one line of the CSV."""

    data: str
    family: str
    label: str
    method: str
    bits: float  # sent, for each element
    ideal_bits: float
    error: float
    bound: float  # 4^-bits


class Subject(NamedTuple):
    """Data to compress, as one vector and as the tensors that it consists of."""

    name: str
    vector: np.ndarray
    tensors: list[np.ndarray]


def main(arguments: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--size", type=int, default=1 << 20)
    parser.add_argument("--gradients", type=Path, help="of benchmarks.gradients")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--draws", type=int, default=3, help="keys to average over")
    parser.add_argument("--out", type=Path, help="folder for the CSV and the plot")
    args = parser.parse_args(arguments)
    subjects = [synthetic(name, args.size) for name in ("gaussian", "log-normal")]
    subjects += real(args.gradients)
    rows = []
    print(
        f"{'data':19} {'method':56} {'bits':>8} {'ideal':>8} {'error':>10} {'x 4^R':>8}"
    )
    for row in measure(lines(args.methods), subjects, args.draws):
        rows.append(row)
        print(
            f"{row.data:19} {row.method:56} {row.bits:8.4f} {row.ideal_bits:8.4f}"
            f" {row.error:10.3e} {row.error / row.bound:8.2f}",
            flush=True,
        )
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "error.csv", rows, digits=6)
        draw_plot(args.out / "error.png", rows)
        print(f"wrote error.csv and error.png in {args.out}")
    off = check_theory()
    if off:
        sys.exit(f"off by more than {100 * TOLERANCE:g} %: {', '.join(off)}")
    return rows


def lines(methods: list[str] | None) -> list[Line]:
    """All lines and all other registered methods, or those that were asked for."""
    rest = others((line.spec for line in LINES), compressors.REGISTRY)
    found = [*LINES, *(Line("other", name) for name in rest)]
    if methods is None:
        return found
    known = {_name(line.spec) for line in found}
    unknown = set(methods) - known
    if unknown:
        raise SystemExit(f"unknown: {unknown}; valid: {', '.join(sorted(known))}")
    return [line for line in found if _name(line.spec) in methods]


def _name(spec: str) -> str:
    """The name by which a line is asked for: its method, or both of a composition."""
    return "|".join(part.split("(")[0].strip() for part in spec.split("|"))


def synthetic(name: str, size: int) -> Subject:
    """A random vector, and the largest square matrix of its elements."""
    side = math.isqrt(size)
    vector = draw(name, (size,))
    return Subject(name, vector, [vector[: side * side].reshape(side, side)])


def real(file: Path | None) -> list[Subject]:
    """The gradients of a training run."""
    if file is None:
        print(
            "no real gradients: make them with `python -m benchmarks.gradients --out"
            " FILE` and give --gradients FILE"
        )
        return []
    found = gradients.load(file)
    return [
        Subject(f"gradient, step {found.steps[name]}", vector, found.tensors(name))
        for name, vector in found.vectors.items()
    ]


def measure(lines: list[Line], subjects: list[Subject], draws: int) -> Iterator[Row]:
    """One row for each point; a method is compiled once for each shape."""
    for line in lines:
        for spec in line.specs():
            compressor = make_compressor(spec)
            for subject in subjects:
                parts = subject.tensors if line.matrices else [subject.vector]
                yield _row(line, compressor, subject.name, parts, draws)


def _row(
    line: Line, compressor: Compressor, data: str, parts: list[np.ndarray], draws: int
) -> Row:
    size = sum(part.size for part in parts)
    total = sum(np.square(part, dtype=np.float64).sum() for part in parts)
    lost = sum(error_of(compressor, part, draws) for part in parts)
    bits = sum(bits_of(compressor, part) for part in parts) / size
    ideal = sum(compressor.ideal_bits(spec_of(part)) for part in parts) / size
    return Row(
        data=data,
        family=line.family,
        label=line.label,
        method=compressor.name,
        bits=bits,
        ideal_bits=ideal,
        error=float(lost / total),
        bound=4.0**-bits,
    )


def error_of(compressor: Compressor, x: np.ndarray, draws: int) -> float:
    """E|x - C(x)|^2, averaged over keys.

    Two programs, as for sender and receiver: within one the compiler may leave out that
    numbers are rounded to a narrow type and back.
    """
    x_, total = jnp.asarray(x), 0.0
    state = compressor.init(spec_of(x_))
    for key in jax.random.split(jax.random.key(0), draws):
        payload, _ = compressor.compress(x_, state, key)
        total += float(_squares(x_, compressor.decompress(payload, x_)))
    return total / draws


@jax.jit
def _squares(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(x - y))


def bits_of(compressor: Compressor, x: np.ndarray) -> int:
    """Bits of the payload of x, from its shapes."""
    spec, key = spec_of(x), jax.random.key(0)
    state = jax.eval_shape(lambda: compressor.init(spec))
    return nbits(jax.eval_shape(compressor.compress, spec, state, key)[0])


def check_theory() -> list[str]:
    """Compare errors with theory; returns the methods that deviate."""
    x = draw("gaussian", (THEORY_SIZE,))
    norm = float(np.square(x, dtype=np.float64).sum())
    off = []
    print(f"\n{'theory, Gaussian':32} {'expected':>9} {'measured':>9} {'off':>8}")
    for spec, expected in THEORY:
        measured = error_of(make_compressor(spec), x, draws=3) / norm
        deviation = measured / expected - 1
        print(f"{spec:32} {expected:9.4f} {measured:9.4f} {100 * deviation:7.2f} %")
        if abs(deviation) > TOLERANCE:
            off.append(spec)
    return off


def draw_plot(file: Path, rows: list[Row]) -> None:
    """A panel for each kind of data, and one for the legend."""
    names = list(dict.fromkeys(row.data for row in rows))
    looks = _looks(rows)
    columns = 3
    height = -(-(len(names) + 1) // columns)
    with style.look():
        figure = Figure(figsize=(5.4 * columns, 4.6 * height))
        axes = figure.subplots(height, columns, squeeze=False).ravel()
        for ax, name in zip(axes, names, strict=False):
            _draw_panel(ax, name, [row for row in rows if row.data == name], looks)
        for ax in axes[len(names) :]:
            ax.set_axis_off()
        _draw_legend(axes[-1], rows, looks)
        figure.tight_layout()
        figure.savefig(file, dpi=120)


class Look(NamedTuple):
    colour: str
    marker: str


def _looks(rows: list[Row]) -> dict[str, Look]:
    """Colour by family, marker by method within it."""
    looks: dict[str, Look] = {}
    counts: dict[str, int] = {}
    for row in rows:
        if row.label not in looks:
            number = counts.get(row.family, 0)
            counts[row.family] = number + 1
            marker = MARKERS[number % len(MARKERS)]
            looks[row.label] = Look(COLOURS[row.family], marker)
    return looks


def _draw_panel(ax: Any, name: str, rows: list[Row], looks: dict[str, Look]) -> None:
    rates = np.geomspace(0.005, 40, 300)
    bound = 4.0**-rates
    ax.plot(rates, bound, "--", color=style.INK, lw=1.2)
    for label, look in looks.items():
        points = [(r.bits, r.error) for r in rows if r.label == label and r.error > 0]
        if points:
            x, y = zip(*sorted(points), strict=True)
            ax.plot(
                x, y, color=look.colour, marker=look.marker, ms=5, lw=1.1, alpha=0.9
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(0.01, 40)
    ax.set_ylim(1e-5, 30)
    ticks = [2.0**i for i in range(-6, 6)]
    ax.set_xticks(ticks, [f"{t:g}" if t >= 1 else f"1/{1 / t:g}" for t in ticks])
    ax.set_title(name)
    ax.set_xlabel("bits sent for each element")
    ax.set_ylabel("error / |x|²")


def _draw_legend(ax: Any, rows: list[Row], looks: dict[str, Look]) -> None:
    handles: list[Any] = []
    for family in dict.fromkeys(row.family for row in rows):
        handles.append(
            Line2D(
                [], [], lw=0, label=f"$\\bf{{{family.replace(' ', chr(92) + ' ')}}}$"
            )
        )
        for label in dict.fromkeys(r.label for r in rows if r.family == family):
            look = looks[label]
            handles.append(
                Line2D([], [], color=look.colour, marker=look.marker, label=label)
            )
    handles.append(
        Line2D([], [], color=style.INK, ls="--", lw=1.2, label="Shannon's bound, 4^-R")
    )
    columns = 1 if len(handles) <= 24 else 2
    ax.legend(handles=handles, loc="center", ncols=columns, fontsize=7.5, frameon=False)


if __name__ == "__main__":
    main()
