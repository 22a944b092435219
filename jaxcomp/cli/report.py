"""`jaxcomp report`: write the report of a run folder."""

import argparse
from pathlib import Path
from typing import Any

from jaxcomp.cli.run_command import add_command

EXAMPLE = """example:
  jaxcomp report runs/cifar10-topk
  jaxcomp report runs/cifar10-topk --svg figures/
  jaxcomp report runs/cifar10-topk --watch
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `report`; as `ends.add_command`."""
    parser = add_command(
        subparsers,
        "report",
        _run,
        help="write report.html into a run folder",
        description="Write report.html into a run folder: one page that holds the "
        "numbers, plots and config of the run and needs no other file; "
        "`jaxcomp compare` puts several runs side by side.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="folder that holds metrics.csv of a run",
    )
    parser.add_argument(
        "--svg",
        type=Path,
        metavar="DIR",
        help="write each plot as an SVG file into this folder as well",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write the page again whenever the run has got on, until it ends; an "
        "open page loads itself again",
    )


def _run(args: argparse.Namespace) -> int:
    # Other commands of the command line start faster without the report package.
    if args.watch:
        from jaxcomp.report.run_page import watch

        watch(args.folder)
    else:
        from jaxcomp.report import write_report

        print(write_report(args.folder))
    if args.svg:
        from jaxcomp.report import read_run
        from jaxcomp.report.page import write_pictures
        from jaxcomp.report.run_page import run_pictures

        found = run_pictures(read_run(args.folder))
        print(*write_pictures(found, args.svg), sep="\n")
    return 0
