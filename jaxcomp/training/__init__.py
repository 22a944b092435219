"""The trainer: from a config and a folder to a trained model and its figures."""

from jaxcomp.runs.interrupt import Interrupted
from jaxcomp.training.checkpoint import CheckpointError
from jaxcomp.training.console import Result, score_line, summary
from jaxcomp.training.dry_run import dry_run
from jaxcomp.training.evaluate import evaluate
from jaxcomp.training.loop import train_and_evaluate
from jaxcomp.training.meters import Diverged, NonFinite

__all__ = [
    "CheckpointError",
    "Diverged",
    "Interrupted",
    "NonFinite",
    "Result",
    "dry_run",
    "evaluate",
    "score_line",
    "summary",
    "train_and_evaluate",
]
