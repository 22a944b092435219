"""Tasks by name: what a batch is, what is learned from it and how it is judged."""

from collections.abc import Callable
from typing import Any

from jaxcomp.imported import check_kind, importable
from jaxcomp.specs import build
from jaxcomp.tasks.classification import classification
from jaxcomp.tasks.task import Batch, Deal, Learnt, Sums, Task, Variables

__all__ = [
    "REGISTRY",
    "Batch",
    "Deal",
    "Learnt",
    "Sums",
    "Task",
    "Variables",
    "make",
]

# (config, workers, **arguments) -> Task
REGISTRY: dict[str, Callable[..., Task]] = {"classification": classification}


def make(spec: str, config: Any, workers: Any) -> Task:
    """The task that a spec names, or one of your own: "my.tasks:text(length=9)".

    Args:
      spec: of a config.
      config: of the run, of which the task takes what it needs.
      workers: of the run: their number is `workers.size`, their axis `workers.axis`.

    Example:
        >>> make("clasification", None, None)
        Traceback (most recent call last):
            ...
        jaxcomp.specs.SpecError: unknown task 'clasification'. Did you mean \
'classification'? Valid: classification
            clasification
            ^
    """
    call, known = importable(spec, REGISTRY, "task")
    return check_kind(build(call, known, "task", config, workers), Task, spec, "task")
