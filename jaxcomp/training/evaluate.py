"""Evaluate a checkpoint that a run has kept."""

import json
import os
from pathlib import Path
from typing import Any

from jaxcomp.runs.folder import RunError, check_config
from jaxcomp.runs.open_run import keep_programs
from jaxcomp.training.checkpoints import make_resize, open_checkpoints, what_is_in
from jaxcomp.training.evaluation import make_evaluator, make_viewer, of_average
from jaxcomp.training.setup import build, gather_workers, settled
from jaxcomp.training.switching import saved_like
from jaxcomp.training.tables import ema_columns, score_columns


def evaluate(
    config: Any,
    workdir: str | os.PathLike[str],
    which: str = "best",
    split: str = "test",
) -> dict[str, float]:
    """Loss, accuracy and measure of a checkpoint of a run.

    Args:
      config: of the run.
      workdir: its folder.
      which: "best", "last" or the number of a step.
      split: "test", or "train" for the training set without augmentation.
    """
    folder, workers = Path(workdir), gather_workers(config)
    config = settled(config, workers)
    plainly = json.loads(config.to_json())
    check_config(folder, plainly)
    setup = build(config, workers)
    if split == "train":  # in the batches of training: columns of a text go on so
        task = setup.tasks[-1]._replace(test=setup.tasks[-1].train)
        setup = setup._replace(tasks=(task,), eval_batch=config.batch_size)
    keep_programs()
    kept = folder / "checkpoints"
    # The best may be of other workers.
    checkpoints = open_checkpoints(kept, config=plainly, elastic=True)
    resize = make_resize(setup, allowed=True)
    restored = checkpoints.restore(saved_like(setup), which, resize)
    if restored is None:
        there = what_is_in(folder / "checkpoints")
        raise RunError(f"{workdir} holds no checkpoint {which!r}; {there}")
    shown = make_viewer(setup, restored.state)(restored.state).shown
    score, measure = make_evaluator(setup, shown), setup.task.measure
    columns = score_columns(score(shown), None, measure)
    columns |= ema_columns(of_average(score, shown), measure)
    known = {name: value for name, value in columns.items() if value is not None}
    figures = {n.replace("test_", f"{split}_", 1): x for n, x in known.items()}
    return {"step": restored.step, **figures}
