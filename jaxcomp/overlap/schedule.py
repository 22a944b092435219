"""What XLA has to be told, so that messages travel beside a computation."""

from typing import Any

__all__ = ["compiler_options"]

# By default XLA orders a program such that it needs little memory, and waits for each
# message where it starts it.
_GPU = {"xla_gpu_enable_latency_hiding_scheduler": True}


def compiler_options(platform: str, parts: int) -> dict[str, Any]:
    """Options of `jitted.lower(...).compile(options)` for a step with `overlap=parts`.

    Args:
      platform: of the devices, such as `jax.devices()[0].platform`.
      parts: messages of a step.

    Example:
      >>> compiler_options("cpu", 4), compiler_options("gpu", 1)
      ({}, {})
      >>> compiler_options("gpu", 4)
      {'xla_gpu_enable_latency_hiding_scheduler': True}
    """
    return dict(_GPU) if parts > 1 and platform in ("gpu", "cuda") else {}
