"""Evaluate a checkpoint that a run has kept."""

import json
import os
from pathlib import Path
from typing import Any

import jax

from jaxcomp import parallel
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import check_config
from jaxcomp.runs.programs import keep_programs
from jaxcomp.training.build import build, gather_workers, settled
from jaxcomp.training.changeable import changeable_keys
from jaxcomp.training.checkpoint import open_checkpoints, what_is_in
from jaxcomp.training.elastic import make_resize
from jaxcomp.training.epoch_row import score_columns
from jaxcomp.training.evaluation import make_evaluator, make_viewer

__all__ = ["evaluate"]


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
    check_config(folder, json.loads(config.to_json()), changeable_keys(config))
    setup = build(config, workers)
    if split == "train":  # in the batches of training: columns of a text go on so
        task = setup.task._replace(test=setup.task.train)
        setup = setup._replace(task=task, eval_batch=setup.horizon.batch_size)
    keep_programs()
    like = parallel.spread_spec(jax.eval_shape(setup.fresh), setup.workers)
    checkpoints = open_checkpoints(folder / "checkpoints")
    resize = make_resize(setup, allowed=True)  # the best may be of other workers
    restored = checkpoints.restore(like, which, resize)
    if restored is None:
        there = what_is_in(folder / "checkpoints")
        raise RunError(f"{workdir} holds no checkpoint {which!r}; {there}")
    shown = make_viewer(setup, like)(restored.state).shown
    scores, measure = make_evaluator(setup, like)(shown), setup.task.measure
    columns = score_columns(scores, None, measure).items()
    known = {name: value for name, value in columns if value is not None}
    figures = {f"{split}_{n.removeprefix('test_')}": x for n, x in known.items()}
    return {"step": restored.step, **figures}
