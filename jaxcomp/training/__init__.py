"""The trainer: from a config and a folder to a trained model and its figures."""

from jaxcomp.runs.interrupt import Interrupted
from jaxcomp.training.checkpoint import CheckpointError
from jaxcomp.training.console import Result, score_line, summary
from jaxcomp.training.loop import evaluate, train_and_evaluate
from jaxcomp.training.meters import Diverged, NonFinite

__all__ = [
    "CheckpointError",
    "Diverged",
    "Interrupted",
    "NonFinite",
    "Result",
    "evaluate",
    "score_line",
    "summary",
    "train_and_evaluate",
]
