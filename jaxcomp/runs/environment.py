"""The environment of a run: versions, devices and revision."""

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxcomp._version import __version__

__all__ = ["describe"]

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


def _git_revision() -> str | None:
    """Revision of the source tree the package runs from; None outside a checkout."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
