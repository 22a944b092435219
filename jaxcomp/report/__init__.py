"""Turn one run folder, or convex ones side by side, into one self-contained HTML page.

The package reads only the files that a trainer leaves behind, so a report can be
written on any machine that has the folder, without JAX devices and without the data.
"""

from jaxcomp.report.convex_folder import ConvexRun, read_convex
from jaxcomp.report.html import all_convex, write_report
from jaxcomp.report.run_folder import ReportError, Run, read_run

__all__ = [
    "ConvexRun",
    "ReportError",
    "Run",
    "all_convex",
    "read_convex",
    "read_run",
    "write_report",
]
