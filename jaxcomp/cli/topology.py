"""`jaxcomp topology`: look at a communication graph before training on it."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from jaxcomp.cli.run_command import add_command
from jaxcomp.core.errors import UserError
from jaxcomp.mixers.gossip.topology import picture, topology
from jaxcomp.report.graph import graph_of
from jaxcomp.report.page import write_drawing

_SHOWN = 10  # neighbours of a worker


def add_parser(subparsers: Any) -> None:
    """Add the command `topology`; as `run_command.add_command`.

    Example:
      >>> parser = argparse.ArgumentParser()
      >>> add_parser(parser.add_subparsers())
      >>> parser.parse_args(["topology", "ring", "16"]).workers
      16
    """
    add = add_command(subparsers, "topology", _run).add_argument
    add("spec", metavar="SPEC", help="name or spec string")
    add("workers", metavar="WORKERS", type=int, help="number of workers")
    add("--draw", type=Path, metavar="FILE", help="draw it into FILE.svg")


def _run(args: argparse.Namespace) -> int:
    """Show who hears whom, how many messages a round takes and how fast the workers
    agree. `jaxcomp list topologies` has the names.

    examples:
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
    if args.draw and args.draw.suffix.lower() != ".svg":
        raise UserError(f"--draw writes FILE.svg, not {args.draw}")
    graph = topology(args.spec, args.workers)
    print(graph)
    count = len(graph.rounds)
    for number, step in enumerate(graph.rounds, 1):
        print(f"\nround {number} of {count}" if count > 1 else "")
        for i, row in enumerate(step.matrix):
            heard = [str(j) for j in np.flatnonzero(row) if j != i]
            left = len(heard) - _SHOWN
            more = f" and {left} more" if left > 0 else ""
            print(f"{i:>5} hears {', '.join(heard[:_SHOWN])}{more}")
    if args.draw:
        shown = graph_of(picture(graph, args.spec))
        assert shown is not None
        write_drawing(args.draw, shown)
        print(f"\n{args.draw}")
    return 0
