"""The trainer: from a config and a folder to a trained model and its figures."""

from jaxcomp.core.files import CheckpointError
from jaxcomp.runs.open_run import Interrupted
from jaxcomp.training.console import Result, dry_run, score_line, summary
from jaxcomp.training.evaluation import evaluate
from jaxcomp.training.loop import train_and_evaluate
from jaxcomp.training.running_metrics import Diverged, NonFinite

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
