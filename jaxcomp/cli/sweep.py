"""`jaxcomp sweep`: train every setting of a grid once, through any interruption."""

import argparse
import copy
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcomp.cli.run_command import add_command
from jaxcomp.core.errors import UserError

if TYPE_CHECKING:
    from jaxcomp.cli.sweeps.runner import Job, Look


EXAMPLE = """example:
  jaxcomp sweep configs/sweeps/digits.py
  jaxcomp sweep configs/sweeps/digits.py --jobs=4 --memory=16GB --out=output/again

The same command goes on after Ctrl-C, a kill or a failure: runs that have finished are
left as they are, and one that was interrupted goes on. It finds its folder by the file
of the sweep: the newest of output/NAME-DATE in which that file has begun. Another --out
begins anew. docs/sweeps.md shows how a sweep is written.
"""
_TRAIN = (sys.executable, "-m", "jaxcomp.cli.sweep_run")
_SHARE = 0.8  # of the memory of this machine


def add_parser(subparsers: Any) -> None:
    """Add the command `sweep`; as `run_command.add_command`."""
    parser = add_command(
        subparsers,
        "sweep",
        _run,
        help="train every setting of a grid once, and compare the runs",
        description="Train a config in many settings: each of them is one run. Writes "
        "summary.csv, with a row for each run, and a page that compares them.",
        epilog=EXAMPLE,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a sweep, as .py or .yaml")
    add("--out", type=Path, metavar="FOLDER", help="by default output/NAME-DATE")
    jobs = "runs at the same time, 1 by default; each of them uses all cores"
    add("--jobs", type=int, default=1, metavar="N", help=jobs)
    memory = "of all runs together, such as 8GB; by default 80 %% of this machine's"
    add("--memory", metavar="SIZE", help=memory)
    again = "start runs again that have failed before"
    add("--retry", action="store_true", help=again)
    add("--list", action="store_true", help="show the runs, and train nothing")


def _run(args: argparse.Namespace) -> int:
    from jaxcomp.cli.sweeps.runner import (
        SweepLimits,
        check_runs,
        line_of,
        lines,
        run_sweep,
        time_left,
        write_summary,
    )

    if args.jobs < 1:
        raise UserError(f"--jobs is at least 1, not {args.jobs}")
    limits = SweepLimits(args.jobs, _memory(args.memory))
    job = _job(args)
    if args.list:
        print(*(run.setting.title for run in job.plan({})), sep="\n")
        return 0
    check_runs(job)
    job.folder.mkdir(parents=True, exist_ok=True)
    with lines() as console:
        console.say(f"sweep in {job.folder}")

        def shown(look: "Look") -> None:
            done = len(look.runs) - len(look.left)
            left = time_left(look, args.jobs)
            console.show(done, len(look.runs), f"{len(look.running)} running  {left}")

        def ended(look: "Look", run: Any) -> None:
            write_summary(job, look)
            left = time_left(look, args.jobs)
            console.say("; ".join(filter(None, [line_of(job, look, run), left])))

        def stopping() -> None:
            console.say("the runs save and end (Ctrl-C again kills them)")

        look = run_sweep(
            *(job, limits),
            retry=args.retry,
            shown=shown,
            ended=ended,
            stopping=stopping,
        )
    return _conclude(job, look)


def _job(args: argparse.Namespace) -> "Job":
    from jaxcomp.cli.config import load_config, override
    from jaxcomp.cli.sweeps import read_sweep
    from jaxcomp.cli.sweeps.reading import make_plan
    from jaxcomp.cli.sweeps.runner import Job, find_folder, parse_best

    sweep = read_sweep(args.file)
    config = load_config(sweep.config)
    plan = make_plan(sweep, lambda words: override(copy.deepcopy(config), words))
    folder = find_folder(args.file, args.out)
    best = parse_best(sweep.best)
    return Job(plan, best, args.file, folder, _TRAIN)


def _conclude(job: "Job", look: "Look") -> int:
    """Write summary and comparison; say which run is the best, and what has failed."""
    from jaxcomp.cli.sweeps.runner import (
        best_run,
        figure_text,
        frozen,
        logfile,
        note_labels,
        workdir,
        write_summary,
    )

    summary = write_summary(job, look)
    if look.signum:
        done = len(look.runs) - len(look.left)
        message = f"stopped; {done} of {len(look.runs)} runs have ended"
        print(message, "Go on with the same command.", sep="\n", file=sys.stderr)
        return 128 + look.signum
    failed = [run for run in look.runs if look.entry(run).state == "failed"]
    for run in failed:
        print(f"failed twice: {run.setting.title}: {look.entry(run).error}")
        print(f"  {logfile(job, run)}")
    best = best_run(job, look)
    if best is not None:
        from jaxcomp.report import write_comparison

        finished = [run for run in look.runs if run.name in look.figures]
        for run in finished:
            note_labels(workdir(job, run), run.setting)
        page = job.folder / "comparison.html"
        folders = [workdir(job, run) for run in finished]
        write_comparison(folders, page, title=job.file.stem)
        figure = figure_text(job.best, look.figures[best.name])
        print(f"best run       {best.setting.title}: {figure}")
        print(f"               {workdir(job, best)}")
        words = frozen(job.folder / "configs", best), f"--workdir=runs/{best.name}"
        print(f"the same again jaxcomp train {shlex.join(words)}")
        print(f"comparison     {page}")
    print(f"summary        {summary}")
    return 1 if failed else 0


def _memory(text: str | None) -> float:
    """Bytes for all runs together, by default most of this machine's memory."""
    if text is not None:
        from jaxcomp.cli import config as quantities

        return quantities.size("--memory", text)
    return _SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
