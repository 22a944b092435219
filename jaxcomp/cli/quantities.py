"""Quantities with a unit on a command line: 8GB, 1Gbit, 0.2ms."""

import re
from collections.abc import Mapping

from jaxcomp.errors import UserError

__all__ = ["bandwidth", "seconds", "size"]

_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_RATES = {"kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9, **_BYTES}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)")


def size(flag: str, text: str) -> float:
    """A number of bytes.

    Example:
      >>> size("--memory", "1.5GB")
      1500000000.0
    """
    return _read(flag, text, _BYTES, "8GB")


def bandwidth(flag: str, text: str) -> float:
    """Bytes a second, from bits or bytes.

    Example:
      >>> bandwidth("--bandwidth", "1Gbit/s"), bandwidth("--bandwidth", "125MB")
      (125000000.0, 125000000.0)
      >>> bandwidth("--bandwidth", "1000")
      Traceback (most recent call last):
      jaxcomp.errors.UserError: --bandwidth is a number with one of kbit, Mbit, ...
    """
    return _read(flag, text.removesuffix("/s"), _RATES, "1Gbit")


def seconds(flag: str, text: str) -> float:
    """A duration.

    Example:
      >>> seconds("--latency", "0.2ms"), seconds("--compute", "0.2 s")
      (0.0002, 0.2)
    """
    return _read(flag, text, _SECONDS, "0.2ms")


def _read(flag: str, text: str, units: Mapping[str, float], example: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if not found or found[2] not in units:
        message = f"is a number with one of {', '.join(units)}, such as {example}"
        raise UserError(f"{flag} {message}, not {text!r}")
    return float(found[1]) * units[found[2]]
