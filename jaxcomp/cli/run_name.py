"""The folder of a run whose command names none: configs and keys name it."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcomp.cli.config import split_names
from jaxcomp.errors import UserError
from jaxcomp.runs.folder import CHANGEABLE

__all__ = ["default_workdir"]

_LONGEST = 80  # characters of what was set; file systems take names of 255 bytes


def default_workdir(names: str, keys: Mapping[str, Any], suffix: str = "") -> Path:
    """The folder runs/CONFIG+PART,KEY=VALUE.SUFFIX, the same for the same run.

    Keys that leave a run the same, such as `log_every`, are left out.

    Args:
      names: of config and parts, as on the command line.
      keys: what else the command sets, with its values.
      suffix: from the command line, to tell runs of one config apart.

    Example:
      >>> keys = {"seed": 1, "memory": "", "log_every": 5}
      >>> str(default_workdir("cifar10_exact,parts/top_k:0.001", keys, "again"))
      'runs/cifar10_exact+top_k-0.001,memory=,seed=1.again'
    """
    configs = "+".join(_safe(_stem(name)) for name in split_names(names))
    counted = sorted((k, str(v)) for k, v in keys.items() if k not in CHANGEABLE)
    pairs = "".join(f",{key}={_safe(value)}" for key, value in counted)
    if len(pairs) > _LONGEST:
        digest = hashlib.sha256(repr(counted).encode()).hexdigest()[:6]
        pairs = f"{pairs[:_LONGEST]}-{digest}"
    if suffix and _safe(suffix) != suffix:
        message = f"has letters, digits and any of '._=-', such as {_safe(suffix)!r}"
        raise UserError(f"--suffix {message}, not {suffix!r}")
    return Path("runs") / f"{configs}{pairs}{'.' if suffix else ''}{suffix}"


def _stem(name: str) -> str:
    """The name of a file without its folder and ending, with what a colon adds."""
    path, *argument = name.split(":", 1)
    return ":".join([Path(path).stem, *argument])


def _safe(text: str) -> str:
    """The text with a dash for what shells and file systems may take amiss."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).rstrip("-") or "-" * bool(text)
