"""What XLA has to be told, so that messages travel beside a computation."""

from pathlib import Path
from typing import Any

__all__ = ["compiler_options"]

# By default XLA orders a program such that it needs little memory, and waits for each
# message where it starts it. Its other scheduler starts a message as late as its guess
# of the message's time allows: all guesses are of a few kernels, so that most messages
# would start behind the backward pass. A profile takes the place of the guesses; this
# one says that every message takes a second, and so each starts once it is there.
_PROFILE = Path(__file__).with_name("long_messages.pbtxt")
_GPU = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_pgle_profile_file_or_directory_path": str(_PROFILE),
    # Or it would print the name of every kernel that the profile does not have.
    "xla_gpu_pgle_accuracy_checker": "PGLE_STRICTNESS_LEVEL_OFF",
}


def compiler_options(platform: str, parts: int) -> dict[str, Any]:
    """Options of `jitted.lower(...).compile(options)` for a step with `overlap=parts`.

    Args:
      platform: of the devices, such as `jax.devices()[0].platform`.
      parts: messages of a step.

    Example:
      >>> compiler_options("cpu", 4), compiler_options("gpu", 1)
      ({}, {})
      >>> compiler_options("gpu", 4)["xla_gpu_enable_latency_hiding_scheduler"]
      True
    """
    return dict(_GPU) if parts > 1 and platform in ("gpu", "cuda") else {}
