"""Tasks by name: their data, model, loss and evaluation."""

from collections.abc import Callable
from typing import Any

from jaxcomp.core.specs import build, check_kind, importable, publish
from jaxcomp.training.tasks.classification import classification
from jaxcomp.training.tasks.language import language
from jaxcomp.training.tasks.logistic_regression import logistic_regression
from jaxcomp.training.tasks.named import regime_of
from jaxcomp.training.tasks.task import (
    ACCURACY,
    PERPLEXITY,
    Batch,
    Learnt,
    Measure,
    Shares,
    Sums,
    Task,
    Variables,
)

__all__ = [
    "ACCURACY",
    "PERPLEXITY",
    "REGISTRY",
    "Batch",
    "Learnt",
    "Measure",
    "Shares",
    "Sums",
    "Task",
    "Variables",
    "make",
    "regime_of",
]

# (config, workers, **arguments) -> Task
REGISTRY: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "language": language,
    "logistic_regression": logistic_regression,
}
publish(task=REGISTRY)


def make(spec: str, config: Any, workers: Any) -> Task:
    """The task that a spec names, or one of your own: "my.tasks:text(length=9)".

    Args:
      spec: of a config.
      config: of the run, of which the task takes what it needs.
      workers: of the run: their number is `workers.size`, their axis `workers.axis`.

    Example:
      >>> from ml_collections import ConfigDict
      >>> config = ConfigDict({"dataset": "digits", "model": "tiny", "data_dir": ""})
      >>> config.update(partition="dealt", batch_norm="local", augment="", eval_view="")
      >>> config.update(image_size=0, label_smoothing=0.0)
      >>> config.update(batch_size=8, seed=0, compute_dtype="float32")
      >>> from jaxcomp import parallel
      >>> task = make("classification", config, parallel.setup(2, "vmap"))
      >>> task.model, task.shares(0).shape
      ('tiny', (179, 2, 4))
    """
    call, known = importable(spec, REGISTRY, "task")
    return check_kind(build(call, known, "task", config, workers), Task, spec, "task")
