"""Read the file of a sweep: Python with a function get_sweep, or YAML."""

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcomp.errors import UserError, within
from jaxcomp.specs import build, check, suggest
from jaxcomp.sweeps.search import search
from jaxcomp.sweeps.settings import Setting, Sweep, product

__all__ = ["from_parts", "read_sweep"]

_PARTS = ("config", "grid", "runs", "always", "best")
_KINDS = {
    **dict.fromkeys(("best", "config"), str),
    **dict.fromkeys(("always", "grid"), Mapping),
    **dict.fromkeys(("runs", "settings"), list | tuple),
}
_SEARCH = "search("


def read_sweep(file: Path) -> Sweep:
    """The sweep that a file describes.

    Args:
      file: `.py`, whose function `get_sweep` returns a `Sweep`, or `.yaml`.

    Raises:
      UserError: there is no such file, or it is none of a sweep.
    """
    with within(str(file)):
        try:
            if file.suffix in (".yaml", ".yml"):
                return from_parts(_parts_of(file))
            if file.suffix == ".py":
                return _from_program(file)
        except OSError as error:
            raise UserError(str(error.strerror)) from None
        raise UserError("a sweep is a .py or a .yaml file")


def from_parts(parts: Mapping[str, Any]) -> Sweep:
    """The sweep that YAML describes.

    Args:
      parts: `config`, with a `grid` as `product` takes it or a list of `runs`, or both;
        and `always` and `best`. `search(start=0.1)` is a value like any other.

    Example:
      >>> from_parts({"config": "a.py", "grid": {"seed": [0, 1]}}).settings[1].values
      {'seed': 1}
    """
    for name in parts:
        if name not in _PARTS:
            raise UserError(f"a sweep has no {name!r}. {suggest(name, _PARTS)}")
    if "config" not in parts or not {"grid", "runs"} & parts.keys():
        raise UserError("a sweep names its config, and a grid or a list of runs")
    _check_kinds(parts)
    grid, runs = parts.get("grid", {}), parts.get("runs", [])
    if not all(isinstance(run, Mapping) for run in runs):
        raise UserError("each of runs sets keys of the config, such as {seed: 1}")
    settings = product(**_with_searches(grid)) if grid else []
    settings += [Setting(_with_searches(run)) for run in runs]
    others = {name: parts[name] for name in ("always", "best") if name in parts}
    return Sweep(parts["config"], settings, **others)


def _from_program(file: Path) -> Sweep:
    try:
        found = runpy.run_path(str(file), run_name=file.stem)
    except SyntaxError as error:
        raise UserError(f"it is not a Python file: {error}") from None
    get_sweep = found.get("get_sweep")
    if not callable(get_sweep):
        message = "it has no function get_sweep; configs/sweeps/digits.py shows one"
        raise UserError(message)
    sweep = get_sweep()
    if not isinstance(sweep, Sweep):
        raise UserError(f"its get_sweep returns {sweep!r}, not a jaxcomp.sweeps.Sweep")
    _check_kinds(sweep._asdict())
    return sweep


def _parts_of(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        parts = yaml.safe_load(file.read_text(encoding="utf-8"))
        json.dumps(parts)  # dates and sets are no values, and nothing holds itself
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"it is no YAML: {error}") from None
    except (RecursionError, TypeError, ValueError) as error:
        message = "it has other values than text, numbers, lists and keys with values"
        raise UserError(f"{message}: {error}") from None
    if not isinstance(parts, Mapping):
        raise UserError(f"a sweep has the parts {', '.join(_PARTS)}, not {parts!r}")
    return parts


def _check_kinds(parts: Mapping[str, Any]) -> None:
    for name, value in parts.items():
        check(_KINDS[name], name, value)


def _with_searches(values: Any) -> Any:
    """The same with a `Search` in place of each text of one."""
    if isinstance(values, Mapping):
        return {str(key): _with_searches(value) for key, value in values.items()}
    if isinstance(values, str) and values.startswith(_SEARCH):
        return build(values, {"search": search}, "value")
    return values
