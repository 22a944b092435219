"""What train.py does with its flags: run, say how it ended, write the report."""

import runpy
import sys
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from jaxcomp import report, training
from jaxcomp.errors import UserError
from jaxcomp.specs import suggest
from jaxcomp.training.progress import bytes_text

__all__ = ["closing_lines", "parse_flags", "run"]


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
    if "problem" in config:
        return _run_convex(config, workdir, evaluate)
    try:
        if evaluate:
            scores = training.evaluate(config, workdir, evaluate)
            print(
                f"{evaluate} checkpoint, step {scores['step']}: test loss "
                f"{scores['test_loss']:.4f}, accuracy {scores['test_accuracy']:.2%}"
            )
            return 0
        result = training.train_and_evaluate(config, workdir)
    except training.Interrupted as interruption:
        print(f"{interruption}\nGo on with the same command.", file=sys.stderr)
        return 128 + interruption.signum
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return error.exit_code
    if jax.process_index() == 0:
        print(closing_lines(result, report.write_report(workdir)))
    return 0


def _run_convex(config: Any, workdir: str, evaluate: str | None) -> int:
    """Solve a problem of the convex testbed; returns the exit code."""
    from jaxcomp.convex import runner

    try:
        if evaluate:
            message = (
                "a convex run evaluates as it goes, into metrics.csv: no --evaluate"
            )
            raise UserError(message)
        result = runner.run(config, workdir)
    except training.Interrupted as interruption:
        print(f"{interruption}\nGo on with the same command.", file=sys.stderr)
        return 128 + interruption.signum
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return error.exit_code
    print(runner.closing_lines(result))
    print(f"report         {report.write_report(workdir)}")
    return 0


def closing_lines(result: training.Result, page: Path) -> str:
    """The end of a run in four lines."""
    traffic, steps, own = result.traffic, result.steps, result.own
    last, best = result.test_accuracy, result.best_accuracy
    verb = "would have sent" if traffic.simulated else "sent"
    return "\n".join(
        [
            f"test accuracy  {last:.2%} (best {best:.2%})"
            f"{' of the mean model' if own else ''}",
            *(
                [f"own models     {own.mean:.2%} on average, {own.worst:.2%} the worst"]
                if own
                else []
            ),
            f"each worker    {verb} {bytes_text(traffic.wire * steps)} instead of "
            f"{bytes_text(traffic.dense * steps)} ({traffic.ratio:.3g}x less"
            f"{', as traced' if traffic.unread else ''}) in "
            f"{steps} steps, {result.seconds:.1f} s",
            f"run folder     {result.folder}",
            f"report         {page}",
        ]
    )
