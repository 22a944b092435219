"""What XLA has to be told, so that messages travel beside a computation."""

from typing import Any

__all__ = ["compiler_options"]

# By default XLA orders a program such that it needs little memory, and waits for each
# message where it starts it. The second option starts a message once it is there,
# whatever XLA guesses of the network.
_GPU = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_experimental_collective_start_as_early_as_possible": True,
}


def compiler_options(platform: str, parts: int) -> dict[str, Any]:
    """Options of `jitted.lower(...).compile(options)` for a step with `overlap=parts`.

    Args:
      platform: of the devices, such as `jax.devices()[0].platform`.
      parts: messages of a step.

    Example:
      >>> compiler_options("cpu", 4), compiler_options("gpu", 1)
      ({}, {})
      >>> len(compiler_options("gpu", 4))
      2
    """
    return dict(_GPU) if parts > 1 and platform in ("gpu", "cuda") else {}
