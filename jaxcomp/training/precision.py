"""The precision of a model's matrix products and convolutions of float32 numbers."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxcomp.errors import UserError
from jaxcomp.tasks import Task

__all__ = ["PRECISIONS", "with_precision"]

PRECISIONS = ("bfloat16", "tensorfloat32", "float32")  # from the fastest


def with_precision(task: Task, precision: str) -> Task:
    """The task with products of a precision, in its loss, gradient and score.

    Products of the method, such as those of power_sgd, stay as they are.

    Args:
      task: any.
      precision: one of `PRECISIONS`; "" leaves it to the device.
    """
    if not precision:
        return task
    if precision not in PRECISIONS:
        valid = ", ".join(PRECISIONS)
        raise UserError(f"unknown matmul_precision {precision!r}. Valid: {valid}")

    def precise(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            with jax.default_matmul_precision(precision):
                return function(*args)

        return call

    return task._replace(loss=precise(task.loss), score=precise(task.score))
