"""Turn one run folder, or convex ones side by side, into one self-contained HTML page.

The package reads only the files that a trainer leaves behind, so a report can be
written on any machine that has the folder, without JAX devices and without the data.
"""

from jaxcomp.report.convex_folder import ConvexRun, read_convex
from jaxcomp.report.html import all_convex, write_report
from jaxcomp.report.run_folder import Run, read_run
from jaxcomp.runs.errors import RunError

__all__ = [
    "ConvexRun",
    "Run",
    "RunError",
    "all_convex",
    "read_convex",
    "read_run",
    "write_report",
]
