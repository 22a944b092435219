"""The plots of a page as PNG files."""

from collections.abc import Sequence
from pathlib import Path

from jaxcomp.report.bars import layers, time_of_a_step
from jaxcomp.report.comparison import comparison_plots, find_runs
from jaxcomp.report.graph import graph_of
from jaxcomp.report.groups import group_runs
from jaxcomp.report.run_folder import read_any
from jaxcomp.report.run_page import run_plots
from jaxcomp.report.whose import holder

__all__ = ["write_pictures"]


def write_pictures(folders: Sequence[Path], target: Path) -> list[Path]:
    """Write each plot of one run, or of several that are compared, into a folder.

    Args:
      folders: of the runs.
      target: made where it is missing; what is there stays, or is replaced.

    Returns:
      The written files.
    """
    # Matplotlib takes most of a second to import; only whoever draws pays for it.
    from jaxcomp.report.graph_plot import draw_graph
    from jaxcomp.report.png import draw_bars, draw_plots, write

    if len(folders) == 1:
        run = read_any(folders[0])
        figures = {name: draw_plots([p]) for name, p in run_plots(run).items()}
        bars = {"breakdown": time_of_a_step(run), "layers": layers(run)}
        figures |= {name: draw_bars(found) for name, found in bars.items() if found}
        graph = graph_of(run.environment.get("graph") or {}, holder([run]))
        figures |= {"graph": draw_graph(graph)} if graph else {}
    else:
        groups = group_runs(find_runs(folders).runs)
        plots = comparison_plots(groups)
        figures = {name: draw_plots([plot]) for name, plot in plots.items()}
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        write(figure, path)
    return paths
