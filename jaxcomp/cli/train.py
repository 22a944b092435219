"""What train.py does with its flags: run, say how it ended, write the report."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import app, flags

from jaxcomp import report, training
from jaxcomp.errors import UserError
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.frame import closing_lines
from jaxcomp.runs.interrupt import Interrupted
from jaxcomp.specs import suggest

__all__ = ["parse_flags", "run"]


def parse_flags(argv: list[str]) -> list[str]:
    """Parse absl flags; a wrong config key or file is one message, not a traceback."""
    try:
        rest = app.parse_flags_with_usage(argv)
        _ = flags.FLAGS.config.keys  # a file that failed to load fails here
        return rest
    except AttributeError as error:
        print(f"train.py: {_unknown_key(argv) or error}", file=sys.stderr)
    except (OSError, TypeError) as error:
        print(f"train.py: {error}", file=sys.stderr)
    sys.exit(UserError.exit_code)


def _unknown_key(argv: list[str]) -> str | None:
    """A message for the first --config.KEY that the config file does not have."""
    values = dict(a.lstrip("-").split("=", 1) for a in argv if "=" in a)
    valid = runpy.run_path(values["config"])["get_config"]().keys()
    for flag in values:
        key = flag.removeprefix("config.")
        if key != flag and key not in valid:
            return f"the config has no key {key!r}. {suggest(key, valid)}"
    return None


def run(config: Any, workdir: str, evaluate: str | None = None) -> int:
    """Train, or evaluate a checkpoint; returns the exit code.

    A config with the key `problem` is one of the convex testbed. Mistakes that a person
    can mend end in one message without a traceback.

    Args:
      config: ConfigDict.
      workdir: run folder.
      evaluate: None trains; "best" or "latest" evaluates that checkpoint.
    """
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
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return error.exit_code
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
