"""Whether all runs of a sweep can be built, before the first of them begins."""

import json
import subprocess
import sys
from itertools import groupby
from typing import Any

from ml_collections import ConfigDict

from jaxcomp.errors import UserError, within
from jaxcomp.sweeps.figures import Best, check_column
from jaxcomp.sweeps.plan import Run
from jaxcomp.sweeps.record import read_record
from jaxcomp.sweeps.runner import Job

__all__ = ["check_runs"]

_PROGRAM = (sys.executable, "-m", __name__)
# What a process does before jax starts, which it does once.
_OF_A_PROCESS = ("deterministic", "mapper", "platform", "workers", "workers_per_device")


def check_runs(job: Job) -> None:
    """Build each run that is new, in processes that end before the first run begins.

    Raises:
      UserError: a run cannot be built, or no column says how good it is; names it.
    """

    def kind(run: Run) -> str:
        return json.dumps([run.config.get(key) for key in _OF_A_PROCESS])

    known = read_record(job.folder)
    runs = sorted((run for run in job.plan({}) if run.name not in known), key=kind)
    for _, alike in groupby(runs, kind):
        given = json.dumps([job.best, [(run.name, run.config) for run in alike]])
        done = subprocess.run(_PROGRAM, input=given, capture_output=True, text=True)
        if done.returncode:
            raise UserError(done.stdout.strip() or done.stderr.strip().split("\n")[-1])


def _columns(config: Any) -> tuple[str, ...]:
    """The columns of the metrics.csv of a config, for which everything is built."""
    from jaxcomp.convex import experiment
    from jaxcomp.runs.metrics import EVALUATIONS
    from jaxcomp.training.build import build, gather_workers
    from jaxcomp.training.tables import columns_of

    if "problem" not in config:
        return columns_of(build(config, gather_workers(config)), config)
    experiment.build(config)
    return EVALUATIONS.columns


def _main() -> int:
    best, configs = json.load(sys.stdin)
    try:
        for name, config in configs:
            with within(name):
                check_column(Best(*best), _columns(ConfigDict(config).lock()))
    except UserError as error:
        print(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main())
