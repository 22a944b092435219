"""The command line of train.py: run, say how it ended, write the report."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
from absl import logging

from jaxcomp import report, training
from jaxcomp.cli.config import load_config, override
from jaxcomp.cli.pipes import quietly
from jaxcomp.errors import UserError
from jaxcomp.runs.environment import check_alone
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import check_workdir
from jaxcomp.runs.frame import closing_lines
from jaxcomp.runs.interrupt import Interrupted
from jaxcomp.specs import suggest

__all__ = ["main", "run"]

_CLUSTER = ("coordinator", "processes", "process")


class _Parser(argparse.ArgumentParser):
    """One whose errors are those of a person, in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def main(argv: Sequence[str], about: str = "") -> int:
    """Run train.py with these words; returns the exit code.

    Args:
      argv: the words after the program's name.
      about: what `--help` shows first.
    """
    return quietly(lambda: _told(lambda: _main(argv, about)))


def _main(argv: Sequence[str], about: str) -> int:
    logging.set_verbosity(logging.FATAL)  # orbax logs what it writes and what it raises
    parser = _Parser("train.py", description=about, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--config", required=True, help="config file, such as configs/default.py")
    add("--workdir", required=True, help="run folder")
    choices = ("best", "latest")
    add("--evaluate", choices=choices, help="only evaluate this checkpoint of the run")
    add("--coordinator", metavar="HOST:PORT", help="of process 0, if there are several")
    add("--processes", type=int, help="their number")
    add("--process", type=int, help="index of this one")
    args, rest = parser.parse_known_args(argv)
    for word in rest:
        flag = re.match(r"--?(?!(?:no)?config\.)([a-z][^=]*)", word)
        if flag:
            valid = ["config", "workdir", "evaluate", *_CLUSTER]
            raise UserError(f"unknown flag {word!r}. {suggest(flag[1], valid)}")
    for name in _CLUSTER:
        if getattr(args, name) is not None:
            os.environ[f"JAXCOMP_{name.upper()}"] = str(getattr(args, name))
    check_alone(os.environ)
    check_workdir(args.workdir)
    config = override(load_config(args.config), rest)
    return run(config, args.workdir, args.evaluate)


def _told(command: Callable[[], int]) -> int:
    """Run a command; what a person can mend ends in one line without a traceback."""
    try:
        return command()
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return error.exit_code


def run(config: Any, workdir: str, evaluate: str | None = None) -> int:
    """Train, or evaluate a checkpoint; returns the exit code.

    A config with the key `problem` is one of the convex testbed.

    Args:
      config: ConfigDict.
      workdir: run folder.
      evaluate: None trains; "best" or "latest" evaluates that checkpoint.
    """
    return _told(lambda: _run(config, workdir, evaluate))


def _run(config: Any, workdir: str, evaluate: str | None) -> int:
    kind = _convex() if "problem" in config else _training()
    try:
        if evaluate:
            line = kind.evaluate(config, workdir, evaluate)
            if jax.process_index() == 0:
                print(f"{evaluate} checkpoint, {line}")
            return 0
        result = kind.run(config, workdir)
        if jax.process_index() == 0:
            page = report.write_report(workdir)
            print(closing_lines(kind.summary(result), Path(workdir), page))
    except Interrupted as interruption:
        lines = [str(interruption), *_report_so_far(workdir)]
        print(*lines, "Go on with the same command.", sep="\n", file=sys.stderr)
        return 128 + interruption.signum
    return 0


class _Kind(NamedTuple):
    """What runs of one kind are made of."""

    run: Callable[[Any, str], Any]
    evaluate: Callable[[Any, str, str], str]
    summary: Callable[[Any], dict[str, str]]


def _training() -> _Kind:
    def evaluate(config: Any, workdir: str, which: str) -> str:
        scores = training.evaluate(config, workdir, which)
        return (
            f"step {scores['step']}: test loss {scores['test_loss']:.4f}, "
            f"accuracy {scores['test_accuracy']:.2%}"
        )

    run = training.train_and_evaluate
    return _Kind(run, evaluate, training.summary)


def _convex() -> _Kind:
    from jaxcomp.convex import runner

    def evaluate(config: Any, workdir: str, which: str) -> str:
        row = runner.evaluate(config, workdir, which)
        return (
            f"seed {row.seed}, step {row.step}: suboptimality "
            f"{row.suboptimality:.3g}, worst {row.worst_suboptimality:.3g}"
        )

    return _Kind(runner.run, evaluate, runner.summary)


def _report_so_far(workdir: str) -> list[str]:
    """Write the report of an interrupted run, if an epoch has ended."""
    if jax.process_index() != 0:
        return []
    try:
        return [f"report so far: {report.write_report(workdir)}"]
    except RunError:
        return []
