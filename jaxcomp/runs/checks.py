"""Numbers of a config that have to fit together, in a run of any kind."""

from jaxcomp.runs.errors import RunError

__all__ = ["check_sizes", "whole_batches"]


def check_sizes(workers: int, batch: int, seed: int, accumulate: int = 1) -> None:
    """Refuse numbers with which no step can be taken.

    Args:
      workers: of the run.
      batch: examples of a step, of all workers together.
      seed: of the run.
      accumulate: parts in which a worker takes its share.

    Example:
        >>> check_sizes(workers=4, batch=63, seed=0)
        Traceback (most recent call last):
        jaxcomp.runs.errors.RunError: a batch of 63 does not divide over 4 workers: ...
    """
    if workers < 1:
        raise RunError(f"workers are 1 or more, not {workers}")
    if accumulate < 1:
        raise RunError(f"accumulate is 1 part or more, not {accumulate}")
    parts = workers * accumulate
    if batch < 1 or batch % parts:
        each = f" with accumulate={accumulate}" if accumulate > 1 else ""
        nearest = parts * max(1, round(batch / parts))
        raise RunError(
            f"a batch of {batch} does not divide over {workers} workers{each}: take a "
            f"multiple of {parts}, such as {nearest}"
        )
    if not 0 <= seed < 2**32:
        raise RunError(f"a seed is a whole number from 0, not {seed}, below 2**32")


def whole_batches(examples: int, batch: int) -> int:
    """The steps of an epoch: what is left over is smaller than a batch.

    Example:
        >>> whole_batches(100, 32)
        3
    """
    if batch > examples:
        raise RunError(f"a batch of {batch} is more than {examples} examples")
    return examples // batch
