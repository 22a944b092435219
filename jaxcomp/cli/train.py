"""The command line of train.py: run, say how it ended, write the report."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
from absl import logging

from jaxcomp import report, training
from jaxcomp.cli.config import load_config, override
from jaxcomp.cli.ends import quietly, told
from jaxcomp.errors import RunFailed, UserError
from jaxcomp.parallel.cluster import find_cluster
from jaxcomp.parallel.joining import is_deserted, join_seconds
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import check_workdir
from jaxcomp.runs.frame import closing_lines
from jaxcomp.runs.interrupt import Interrupted

__all__ = ["main", "run"]


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors as `UserError`, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def main(argv: Sequence[str], about: str = "") -> int:
    """Run train.py with these words; returns the exit code.

    Args:
      argv: the words after the program's name.
      about: what `--help` shows first.
    """
    code = quietly(lambda: told("train.py", lambda: _main(argv, about)))
    if is_deserted():  # the end of Python would wait for what nobody ends
        sys.stdout.flush()
        os._exit(code)
    return code


def _main(argv: Sequence[str], about: str) -> int:
    logging.set_verbosity(logging.FATAL)  # orbax logs what it writes and what it raises
    parser = _Parser("train.py", description=about, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--config", required=True, help="config file, such as configs/default.py")
    add("--workdir", required=True, help="run folder")
    choices = ("best", "latest")
    add("--evaluate", choices=choices, help="only evaluate this checkpoint of the run")
    several = parser.add_argument_group("several processes", "see docs/cluster.md")
    add = several.add_argument
    add("--coordinator", metavar="HOST:PORT", help="of process 0; auto: jax finds it")
    add("--processes", type=int, metavar="N", help="their number")
    add("--process", type=int, metavar="I", help="index of this one")
    add("--join-timeout", metavar="SECONDS", help="for all of them to come, 300")
    args, rest = parser.parse_known_args(argv)
    for name in ("coordinator", "processes", "process", "join_timeout"):
        if getattr(args, name) is not None:
            os.environ[f"JAXCOMP_{name.upper()}"] = str(getattr(args, name))
    join_seconds(os.environ)
    if not find_cluster(os.environ):
        check_workdir(args.workdir)  # several processes do so together
    config = override(load_config(args.config), rest)
    return run(config, args.workdir, args.evaluate)


def run(config: Any, workdir: str, evaluate: str | None = None) -> int:
    """Train, or evaluate a checkpoint; returns the exit code.

    A config with the key `problem` is one of the convex testbed.

    Args:
      config: ConfigDict.
      workdir: run folder.
      evaluate: None trains; "best" or "latest" evaluates that checkpoint.
    """
    return told("train.py", lambda: _run(config, workdir, evaluate))


def _run(config: Any, workdir: str, evaluate: str | None) -> int:
    kind = _kind_of(config)
    try:
        if evaluate:
            scores = kind.evaluate(config, workdir, evaluate)
            if jax.process_index() == 0:
                print(f"{evaluate} checkpoint, {kind.line.format(scores)}")
            return 0
        result = kind.run(config, workdir)
        if jax.process_index() == 0:
            page = report.write_report(workdir)
            print(closing_lines(kind.summary(result), Path(workdir), page))
    except Interrupted as interruption:
        lines = [str(interruption), *_report_so_far(workdir)]
        print(*lines, "Go on with the same command.", sep="\n", file=sys.stderr)
        return 128 + interruption.signum
    except RunFailed:
        for line in [] if evaluate else _report_so_far(workdir):
            print(line, file=sys.stderr)
        raise
    return 0


class _Kind(NamedTuple):
    """The functions of one kind of run: training, or the convex testbed."""

    run: Callable[[Any, str], Any]
    evaluate: Callable[[Any, str, str], Any]
    line: str  # what is told of that
    summary: Callable[[Any], dict[str, str]]


def _kind_of(config: Any) -> _Kind:
    if "problem" not in config:
        line = (
            "step {0[step]}: test loss {0[test_loss]:.4f}, accuracy "
            "{0[test_accuracy]:.2%}"
        )
        run, evaluate = training.train_and_evaluate, training.evaluate
        return _Kind(run, evaluate, line, training.summary)
    if find_cluster(os.environ):
        message = "simulates all workers in one process; start it once, without"
        raise UserError(f"the convex testbed {message} --coordinator")
    from jaxcomp.convex import runner

    line = (
        "seed {0.seed}, step {0.step}: suboptimality {0.suboptimality:.3g}, worst "
        "{0.worst_suboptimality:.3g}"
    )
    return _Kind(runner.run, runner.evaluate, line, runner.summary)


def _report_so_far(workdir: str) -> list[str]:
    """Write the report of an interrupted run, if an epoch has ended."""
    if jax.process_index() != 0:
        return []
    try:
        return [f"report so far: {report.write_report(workdir)}"]
    except RunError:
        return []
