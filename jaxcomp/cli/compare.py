"""`jaxcomp compare`: one page of several runs."""

import argparse
from pathlib import Path
from typing import Any

from jaxcomp.cli.run_command import add_command

EXAMPLE = """example:
  jaxcomp compare runs/exact runs/top_k-seed0 runs/top_k-seed1
  jaxcomp compare runs/* --out methods.html --note "signs suffice on this network"
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `compare`; as `ends.add_command`."""
    parser = add_command(
        subparsers,
        "compare",
        _run,
        help="write one page that compares several runs",
        description="Write one HTML page of several runs, which needs no other file: "
        "their curves side by side, accuracy against bytes, and a table of the best. "
        "Runs that differ only in the seed are one line, with a band. Folders that "
        "hold no run are named on the page.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="FOLDER", help="a run folder"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("comparison.html"),
        metavar="FILE",
        help="the page, comparison.html by default",
    )
    parser.add_argument("--title", default="", help="of the page")
    parser.add_argument(
        "--note",
        help="shown at the top; a page that is written again keeps its note, until "
        "--note gives another or, with --note '', none",
    )
    parser.add_argument(
        "--svg",
        type=Path,
        metavar="DIR",
        help="write each plot as an SVG file into this folder as well",
    )


def _run(args: argparse.Namespace) -> int:
    # Other commands of the command line start faster without the report package.
    from jaxcomp.report import write_comparison

    print(write_comparison(args.folders, args.out, args.title, args.note))
    if args.svg:
        from jaxcomp.report.comparison import comparison_plots, find_runs
        from jaxcomp.report.grouping import group_runs
        from jaxcomp.report.page import write_pictures

        found = comparison_plots(group_runs(find_runs(args.folders).runs))
        print(*write_pictures(found, args.svg), sep="\n")
    return 0
