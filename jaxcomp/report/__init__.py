"""Turn one run folder, or several convex ones, into one self-contained HTML page.

The package reads only the files that a run leaves in its folder. So a report can be
written on any machine that has the folder, without devices and without the data.
"""

from jaxcomp.report.html import all_convex, write_report
from jaxcomp.report.run_folder import Run, read_convex, read_run
from jaxcomp.runs.errors import RunError

__all__ = [
    "Run",
    "RunError",
    "all_convex",
    "read_convex",
    "read_run",
    "write_report",
]
