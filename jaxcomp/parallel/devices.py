"""The devices of a run: of the platform that was asked for, and equally many each."""

import os
import platform as machine
import shlex
from typing import Any

import jax
import numpy as np

from jaxcomp.errors import UserError

__all__ = [
    "DETERMINISTIC",
    "PLATFORMS",
    "check_platform",
    "has_started",
    "pick",
    "use_deterministic_kernels",
]

PLATFORMS = ("", "cpu", "gpu", "tpu")
_WAYS = {
    "cpu": "set platform before anything else touches jax",
    "gpu": "Install jax[cuda12] or jax[cuda13], and look at nvidia-smi, "
    "CUDA_VISIBLE_DEVICES and JAX_PLATFORMS",
    "tpu": "Install jax[tpu], and look at JAX_PLATFORMS",
}
# Sums by atomic additions are left out, and no kernel is chosen by how fast it was.
DETERMINISTIC = {"xla_gpu_deterministic_ops": "true", "xla_gpu_autotune_level": "0"}


def check_platform(platform: str) -> None:
    """Refuse devices of another platform; jax itself falls back to the CPU.

    Args:
      platform: one of `PLATFORMS`; "" takes what there is.
    """
    if not platform:
        return
    if platform == "cpu" and not has_started():
        jax.config.update("jax_platforms", "cpu")
    try:
        found = f"found {jax.default_backend()} devices"
        if jax.default_backend() == platform:
            return
    except RuntimeError as error:
        found = f"could not start: {error}"
    raise UserError(
        f"platform {platform!r} is asked for, and jax {found}. {_WAYS[platform]}; or "
        "set platform to '' to take what there is"
    )


def use_deterministic_kernels() -> None:
    """Let XLA compile programs that give the same bits every time they run on GPUs.

    CPU programs do so anyway. XLA reads XLA_FLAGS once, when it starts.

    Raises:
      UserError: XLA runs already without the flags, or XLA_FLAGS says the opposite.
    """
    words = shlex.split(os.environ.get("XLA_FLAGS", ""))
    parts = [word.removeprefix("--").partition("=") for word in words]
    given = {name: value for name, _, value in parts}
    for name, value in DETERMINISTIC.items():
        if given.get(name, value) != value:
            raise UserError(
                f"deterministic needs --{name}={value}, and XLA_FLAGS has "
                f"--{name}={given[name]}: remove one of the two"
            )
    missing = [
        f"--{name}={value}"
        for name, value in DETERMINISTIC.items()
        if name not in given
    ]
    if not missing:
        return
    if not has_started():
        os.environ["XLA_FLAGS"] = " ".join([*words, *missing])
    elif jax.default_backend() == "gpu":
        raise UserError(
            "deterministic comes too late, because jax has started already: set "
            f"XLA_FLAGS='{' '.join(missing)}' in the environment"
        )


def has_started() -> bool:
    """Whether jax has looked for devices; settings of them come too late then."""
    name = "jax_num_cpu_devices"
    count = getattr(jax.config, name)
    try:
        jax.config.update(name, count + 1)  # refused once devices are there
    except RuntimeError:
        return True
    jax.config.update(name, count)
    return False


def pick(devices: list[Any], count: int, processes: int) -> np.ndarray:
    """`count` devices, equally many of each process and in its order.

    Raises:
      UserError: a process has fewer; says which, and on which host this one runs.
    """
    found = [
        [d for d in devices if d.process_index == index] for index in range(processes)
    ]
    share = -(-count // processes)
    few = [index for index, mine in enumerate(found) if len(mine) < share]
    if few:
        listed = ", ".join(f"{i} has {len(mine)}" for i, mine in enumerate(found))
        raise UserError(
            f"process {few[0]} has {len(found[few[0]])} devices, and {count} workers "
            f"on {processes} processes need {share} of each: process {listed}; this is "
            f"process {jax.process_index()} on {machine.node()}. CUDA_VISIBLE_DEVICES "
            "and JAX_LOCAL_DEVICE_IDS say what a process may see"
        )
    return np.array([device for mine in found for device in mine[:share]])
