"""Turn run folders into self-contained HTML pages: one run, or several side by side.

The package reads only the files that a run leaves in its folder. So a report can be
written on any machine that has the folder, without devices and without the data.
"""

from jaxcomp.report.comparison import write_comparison
from jaxcomp.report.run_folder import Run, read_run
from jaxcomp.report.run_page import write_report
from jaxcomp.runs.folder import RunError

__all__ = [
    "Run",
    "RunError",
    "read_run",
    "write_comparison",
    "write_report",
]
