"""Turn one run folder into one self-contained HTML page.

The package reads only the files that a trainer leaves behind, so a report can be
written on any machine that has the folder, without JAX devices and without the data.
"""

from jaxcomp.report.html import write_report
from jaxcomp.report.run_folder import ReportError, Run, read_run

__all__ = ["ReportError", "Run", "read_run", "write_report"]
