"""`jaxcomp report`: write the report of a run folder."""

import argparse
import sys
from pathlib import Path

EXAMPLE = """example:
  jaxcomp report runs/cifar10-topk
  jaxcomp report runs/cifar10-topk --png figures/
"""


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    """Adds the command to the command line.

    Args:
        subparsers: What `ArgumentParser.add_subparsers` returned.
    """
    parser = subparsers.add_parser(
        "report",
        help="write report.html into a run folder",
        description="Write report.html into a run folder: one page that holds the "
        "numbers, plots and config of the run and needs no other file.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="folder that holds metrics.csv of a run",
    )
    parser.add_argument(
        "--png",
        type=Path,
        metavar="DIR",
        help="write each plot as a PNG file into this folder as well",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the report and prints its path.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code: 0, or 1 if there is no report.
    """
    # Other commands of the command line start faster without the report package.
    from jaxcomp.report import ReportError, write_report

    try:
        print(write_report(args.folder))
        if args.png:
            _write_pngs(args.folder, args.png)
    except (ReportError, OSError) as error:
        print(f"jaxcomp report: {error}", file=sys.stderr)
        return 1
    return 0


def _write_pngs(folder: Path, target: Path) -> None:
    from jaxcomp.report import read_run
    from jaxcomp.report.plots import PLOTS
    from jaxcomp.report.svg import write_png

    run = read_run(folder)
    target.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        path = target / f"{plot.name}.png"
        write_png(plot.draw(run), path)
        print(path)
