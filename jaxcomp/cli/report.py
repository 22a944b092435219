"""`jaxcomp report` and `jaxcomp compare`: pages of one run, and of several."""

import argparse
from pathlib import Path
from typing import Any

from jaxcomp import report
from jaxcomp.cli.run_command import add_command


def add_parser(subparsers: Any) -> None:
    """Add the command `report`; as `run_command.add_command`."""
    add = add_command(subparsers, "report", _report).add_argument
    add("folder", type=Path, metavar="FOLDER", help="a run folder")


def add_compare(subparsers: Any) -> None:
    """Add the command `compare`; as `run_command.add_command`."""
    add = add_command(subparsers, "compare", _compare).add_argument
    add("folders", type=Path, nargs="+", metavar="FOLDER", help="a run folder")
    page = Path("comparison.html")
    add("--out", type=Path, default=page, metavar="FILE", help=f"by default {page}")
    add("--title", default="", help="of the page")


def _report(args: argparse.Namespace) -> int:
    """Write report.html into a run folder: one page that holds the numbers, plots and
    config of the run and needs no other file; `jaxcomp compare` puts several runs side
    by side.

    example:
      jaxcomp report runs/cifar10-topk
    """
    print(report.write_report(args.folder))
    return 0


def _compare(args: argparse.Namespace) -> int:
    """Write one HTML page of several runs, which needs no other file: their curves side
    by side, accuracy against bytes, and a table of the best. Runs that differ only in
    the seed are one line, with a band. Folders that hold no run are named on the page.

    example:
      jaxcomp compare runs/exact runs/top_k-seed0 runs/top_k-seed1
      jaxcomp compare runs/* --out methods.html --title "on this network"
    """
    print(report.write_comparison(args.folders, args.out, args.title))
    return 0
