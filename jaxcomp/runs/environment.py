"""The environment of a run: versions, devices, revision and launcher."""

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxcomp._version import __version__
from jaxcomp.runs.errors import RunError

__all__ = ["check_alone", "describe"]

# What launchers tell each of the processes that they start: how many there are.
_LAUNCHERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")
_DECIDING = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "XLA_FLAGS",
)


def describe() -> dict[str, Any]:
    """Versions, devices and revision."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    return {
        "versions": {
            "python": platform.python_version(),
            "jaxcomp": __version__,
            **versions,
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "devices": [str(d) for d in jax.devices()],
        "processes": jax.process_count(),
        # What decides which devices there are, and how programs are compiled for them.
        "variables": {name: os.environ.get(name, "") for name in _DECIDING},
        "git_revision": _git_revision(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


def check_alone(variables: Mapping[str, str]) -> None:
    """Refuse processes that would each train alone, though they were started together.

    Args:
      variables: of the environment.

    Example:
      >>> check_alone({"SLURM_NTASKS": "4"})
      Traceback (most recent call last):
      jaxcomp.runs.errors.RunError: SLURM_NTASKS=4 says that 4 processes were ...
    """
    if variables.get("JAXCOMP_COORDINATOR"):
        return
    flags = "--coordinator=HOST:PORT, --processes=N and --process=I"
    for name in ("JAXCOMP_PROCESSES", "JAXCOMP_PROCESS"):
        if variables.get(name):
            flag = name.removeprefix("JAXCOMP_").lower()
            message = f"--{flag} ({name}) is set without a coordinator: give {flags}"
            raise RunError(message)
    for name in _LAUNCHERS:
        count = variables.get(name, "1")
        if count.isdigit() and int(count) > 1:
            raise RunError(
                f"{name}={count} says that {count} processes were started together, "
                "and without a coordinator each would train alone. To train as one, "
                f"give {flags}; for one process alone, unset {name}"
            )


def _git_revision() -> str | None:
    """Revision of the source tree the package runs from; None outside a checkout."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
