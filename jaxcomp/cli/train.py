"""What train.py does with its flags: run, say how it ended, write the report."""

import sys
from pathlib import Path
from typing import Any

import jax

from jaxcomp import report, training
from jaxcomp.data import DataError
from jaxcomp.training.progress import bytes_text

__all__ = ["run"]


def run(config: Any, workdir: str, evaluate: str | None = None) -> int:
    """Train, or evaluate a checkpoint; returns the exit code.

    Mistakes that a person can mend end in one message without a traceback.

    Args:
      config: ConfigDict.
      workdir: run folder.
      evaluate: None trains; "best" or "latest" evaluates that checkpoint.
    """
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
    except (
        ValueError,
        DataError,
        training.NonFinite,
        training.CheckpointError,
    ) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    if jax.process_index() == 0:
        print(closing_lines(result, report.write_report(workdir)))
    return 0


def closing_lines(result: training.Result, page: Path) -> str:
    """The end of a run in four lines."""
    traffic, steps = result.traffic, result.steps
    last, best = result.test_accuracy, result.best_accuracy
    verb = "would have sent" if traffic.simulated else "sent"
    return "\n".join(
        [
            f"test accuracy  {last:.2%} (best {best:.2%})",
            f"each worker    {verb} {bytes_text(traffic.wire * steps)} instead of "
            f"{bytes_text(traffic.dense * steps)} ({traffic.ratio:.3g}x less) in "
            f"{steps} steps, {result.seconds:.1f} s",
            f"run folder     {result.folder}",
            f"report         {page}",
        ]
    )
