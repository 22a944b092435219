"""`jaxcomp topology`: look at a communication graph before training on it."""

import argparse
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jaxcomp.cli.run_command import add_command
from jaxcomp.core.errors import UserError
from jaxcomp.mixers.gossip.topology import REGISTRY, Topology, picture, topology
from jaxcomp.report.graph import graph_of
from jaxcomp.report.page import write_picture

_SHOWN_SIZES = {"expander": 31, "margulis": 36, "social": 32}  # the others: 16
_LARGEST_MATRIX = 64  # workers; neighbours are listed for more
_WIDE = 32  # workers up to which a cell has two characters


def add_parser(subparsers: Any) -> None:
    """Add the command `topology`; as `run_command.add_command`.

    Example:
      >>> parser = argparse.ArgumentParser()
      >>> add_parser(parser.add_subparsers())
      >>> parser.parse_args(["topology", "ring", "16"]).workers
      16
    """
    parser = add_command(subparsers, "topology", _run)
    parser.add_argument("spec", metavar="SPEC", nargs="?", help="name or spec string")
    parser.add_argument(
        "workers", metavar="WORKERS", nargs="?", type=int, help="number of workers"
    )
    parser.add_argument("--list", action="store_true", help="list every graph")
    parser.add_argument("--json", action="store_true", help="a graph, for machines")
    about = "draw it into FILE.svg"
    parser.add_argument("--draw", type=Path, metavar="FILE", help=about)


def _run(args: argparse.Namespace) -> int:
    """Show who hears whom, how many messages a round takes and how fast the workers
    agree.

    examples:
      jaxcomp topology --list
      jaxcomp topology ring 16
      jaxcomp topology "exponential(one_peer=True)" 8 --draw rounds.svg
      jaxcomp topology "torus(rows=2)" 12 --draw torus.svg
      jaxcomp topology "file(path='graph.txt')" 6
          graph.txt holds one edge a line, `i j` or `i j weight`, # starts a comment
      jaxcomp topology "edges(list=[[0, 1], [1, 2], [2, 3]])" 4

    degree: how many others one worker hears in a round. slots: messages that a worker
    sends one after the other. spectral gap: 1 is the exact mean after one round, or one
    cycle of rounds; close to 0 is slow.
    """
    if args.list:
        print(_listing())
        return 0
    if args.spec is None or args.workers is None:
        missing = "SPEC and WORKERS" if args.spec is None else "WORKERS"
        raise UserError(f"needs {missing}: jaxcomp topology ring 16, or --list")
    if args.draw and args.draw.suffix.lower() != ".svg":
        raise UserError(f"--draw writes FILE.svg, not {args.draw}")
    graph = topology(args.spec, args.workers)
    if args.json:
        print(json.dumps(_facts(graph), indent=1))
    else:
        print(f"{graph}\n\n{_drawing(graph)}")
    if args.draw:
        _draw(graph, args.spec, args.draw)
        print(f"\n{args.draw}", file=sys.stderr if args.json else sys.stdout)
    return 0


def _facts(graph: Topology) -> dict[str, Any]:
    """What is known of a graph, with the matrix of each round."""
    return {
        "name": graph.name,
        "workers": graph.size,
        "degree": graph.degree,
        "spectral_gap": float(graph.spectral_gap),
        "rounds": [
            {"slots": len(step.slots), "matrix": step.matrix.tolist()}
            for step in graph.rounds
        ],
    }


def _listing() -> str:
    rows = [("NAME", "WORKERS", "DEGREE", "GAP", "")]
    for name, factory in sorted(REGISTRY.items()):
        about = (inspect.getdoc(factory) or "").splitlines()[0]
        parameters = inspect.signature(factory).parameters
        if any(key in parameters for key in ("path", "list")):
            rows.append((name, "", "", "", about))
            continue
        size = _SHOWN_SIZES.get(name, 16)
        specs = [name]
        if "one_peer" in parameters:
            specs.append(f"{name}(one_peer=True)")
        for spec in specs:
            graph = topology(spec, size)
            gap = f"{graph.spectral_gap:.3f}"
            rows.append((spec, str(size), str(graph.degree), gap, about))
            about = "The same, one neighbour a round."
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        f"{name:<{width}}  {size:>7}  {degree:>6}  {gap:>5}  {about}".rstrip()
        for name, size, degree, gap, about in rows
    )


def _drawing(graph: Topology) -> str:
    """Rows of dots for each round, or lists of neighbours for large graphs."""
    count, is_small = len(graph.rounds), graph.size <= _LARGEST_MATRIX
    blocks = []
    for number, step in enumerate(graph.rounds, 1):
        heading = [f"round {number} of {count}"] if count > 1 else []
        rows = _dots(step.matrix) if is_small else _neighbours(step.matrix)
        blocks.append("\n".join([*heading, *rows]))
    if is_small:
        heard, own, _ = _symbols()
        blocks.append(f"row i, column j: {heard} i hears j, {own} i's own value")
    return "\n\n".join(blocks)


def _symbols() -> tuple[str, str, str]:
    """The symbols for heard, own and nothing; ASCII if the terminal needs it."""
    symbols = ("●", "○", "·")
    try:
        "".join(symbols).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ("#", "o", ".")
    return symbols


def _dots(matrix: np.ndarray) -> list[str]:
    heard, own, nothing = _symbols()
    size = len(matrix)
    between = " " if size <= _WIDE else ""
    cells = np.where(matrix != 0, heard, nothing)
    np.fill_diagonal(cells, own)
    width = len(str(size - 1))
    # A ruler of last digits; the tens stand above where there are any.
    numbers = [str(i) for i in range(size)]
    tens = [name[:-1] if name.endswith("0") else "" for name in numbers]
    rulers = [tens] if size > 10 else []
    rulers.append([name[-1] for name in numbers])
    margin = " " * (width + 3)
    lines = [
        (margin + between.join(f"{mark:1}" for mark in ruler)).rstrip()
        for ruler in rulers
    ]
    return lines + [f"{i:>{width + 1}}  {between.join(r)}" for i, r in enumerate(cells)]


def _neighbours(matrix: np.ndarray, most: int = 10) -> list[str]:
    lines = []
    for i, row in enumerate(matrix):
        heard = [str(j) for j in np.flatnonzero(row) if j != i]
        more = f" and {len(heard) - most} more" if len(heard) > most else ""
        lines.append(f"{i:>5} hears {', '.join(heard[:most])}{more}")
    return lines


def _draw(graph: Topology, spec: str, path: Path) -> None:
    shown = graph_of(picture(graph, spec))
    assert shown is not None
    write_picture(path, shown)
