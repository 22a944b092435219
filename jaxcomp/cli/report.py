"""`jaxcomp report`: write the report of a run folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxcomp.cli.ends import add_command

__all__ = ["add_parser"]

EXAMPLE = """example:
  jaxcomp report runs/cifar10-topk
  jaxcomp report runs/cifar10-topk --png figures/
  jaxcomp report runs/convex-ring runs/convex-centralised
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `report`; as `ends.add_command`."""
    parser = add_command(
        subparsers,
        "report",
        _run,
        help="write report.html into a run folder",
        description="Write report.html into a run folder: one page that holds the "
        "numbers, plots and config of the run and needs no other file. Runs of the "
        "convex testbed may share a page, which goes into the first folder.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="folder that holds metrics.csv of a run; several of convex runs",
    )
    parser.add_argument(
        "--png",
        type=Path,
        metavar="DIR",
        help="write each plot as a PNG file into this folder as well",
    )


def _run(args: argparse.Namespace) -> int:
    # Other commands of the command line start faster without the report package.
    from jaxcomp.report import write_report

    print(write_report(*args.folders))
    if args.png:
        _write_pngs(args.folders, args.png)
    return 0


def _write_pngs(folders: Sequence[Path], target: Path) -> None:
    from jaxcomp.report import all_convex, read_convex, read_run
    from jaxcomp.report.convex_curves import draw_runs
    from jaxcomp.report.plots import plots_of
    from jaxcomp.report.svg import write

    if all_convex(*folders):
        runs = [read_convex(folder) for folder in folders]
        figures = {"suboptimality": draw_runs(runs)}
    else:
        run = read_run(folders[0])
        figures = {name: plot.draw(run) for name, plot in plots_of(run).items()}
    target.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = target / f"{name}.png"
        write(figure, path)
        print(path)
