"""The batch of a config: said once, and divided by the workers."""

from typing import Any

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, check
from jaxcomp.runs.folder import RunError, check_fit


def check_one_batch(config: Any) -> None:
    """Refuse a config that says its batch in both ways, or in none.

    Example:
      >>> from ml_collections import ConfigDict
      >>> check_one_batch(ConfigDict({"batch_size": 64, "batch_per_worker": 16}))
      Traceback (most recent call last):
      jaxcomp.UserError: batch_size=64 is of all workers together, and ...
    """
    if not config.batch_per_worker:
        check(Count, "batch_size", config.batch_size)
    elif config.batch_size:
        raise UserError(
            f"batch_size={config.batch_size} is of all workers together, and "
            f"batch_per_worker={config.batch_per_worker} of each: give one of them, "
            "and set the other to 0"
        )


def batch_of(config: Any, workers: int) -> int:
    """Examples of a step, of all workers together.

    Example:
      >>> from ml_collections import ConfigDict
      >>> batch_of(ConfigDict({"batch_size": 0, "batch_per_worker": 16}), workers=4)
      64
    """
    return config.batch_per_worker * workers or config.batch_size


def check_batches(config: Any, workers: int) -> None:
    """Refuse batches of training or evaluation that the workers do not divide."""
    batch = batch_of(config, workers)
    check_fit(workers, batch, config.accumulate)
    try:
        check_fit(workers, config.eval_batch_size or batch)
    except RunError as error:
        raise RunError(f"eval_batch_size: {error}") from None
