"""The config of a command line: a Python file, and the keys that are set after it."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxcomp.cli.standard import find_config, let_configs_import, standard_configs
from jaxcomp.errors import UserError
from jaxcomp.specs import check, nearest, suggest

__all__ = ["load_config", "override"]

FLAGS = (
    *("config", "coordinator", "debug", "evaluate", "join-timeout"),
    *("peer-timeout", "process", "processes", "workdir"),
)
_ALL = "`jaxcomp list configs` shows the standard ones"
_BOOLS = {"1": "True", "true": "True", "0": "False", "false": "False"}


def load_config(path: str) -> ConfigDict:
    """Run a config file and return what its `get_config` returns.

    Args:
      path: of the file, or the name of a standard config; what stands after a colon is
        the argument of `get_config`.
    """
    name, *arguments = path.split(":", 1)
    if not name:
        message = "--config is empty: name a file, such as configs/default.py"
        raise UserError(message)
    let_configs_import()
    file = find_config(name)
    try:
        code = compile(file.read_bytes(), str(file), "exec")
    except OSError as error:
        raise UserError(f"--config={name}: {error.strerror}. {_near(name)}") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(f"--config={name} is not a Python file: {error}") from None
    scope = {"__name__": file.stem, "__file__": str(file)}
    exec(code, scope)
    get_config = scope.get("get_config")
    if not callable(get_config):
        message = "has no function get_config; configs/default.py shows one"
        raise UserError(f"--config={name} {message}")
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
        message = f"its get_config takes other arguments: {error}"
        raise UserError(f"--config={path}: {message}") from None
    config = get_config(*arguments)
    if not isinstance(config, ConfigDict):
        message = f"its get_config returns {config!r}, not a ConfigDict"
        raise UserError(f"--config={name}: {message}")
    return config


def override(
    config: ConfigDict, words: Sequence[str], flags: Iterable[str] = FLAGS
) -> ConfigDict:
    """Set keys of a config from the command line, and lock it.

    Args:
      config: as its file has it; changed in place.
      words: of the command line, `--config.KEY=VALUE` or `--config.KEY VALUE`.
      flags: of the command, to suggest one for an unknown word.
    """
    valid = dict(_places(config))
    left = iter(words)
    for word in left:
        found = re.fullmatch(r"--?config\.([^=]+)(=(.*))?", word, re.DOTALL)
        if not found:
            hint = suggest(word.lstrip("-").partition("=")[0], flags)
            raise UserError(f"unknown argument {word!r}. {hint}")
        path, text = found[1], found[3] if found[2] else next(left, None)
        if path not in valid:
            message = f"the config has no key {path!r}. {suggest(path, valid)}"
            raise UserError(message)
        if text is None:
            raise UserError(f"--config.{path} needs a value: --config.{path}=VALUE")
        part, key = valid[path], path.rpartition(".")[2]
        part[key] = _value(part.get_type(key), path, text)
    return config.lock()


def _value(kind: type, name: str, text: str) -> Any:
    """Convert the text of a flag to the type of its key."""
    if kind is str:
        return text
    if kind is bool:
        text = _BOOLS.get(text.lower(), text)
    try:
        value = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        value = text
    value = tuple(value) if kind is tuple and isinstance(value, list) else value
    check(kind, name, value)
    return value


def _near(name: str) -> str:
    """Suggest the config whose name is the most similar: a standard one, or a file."""
    standard = {Path(key).stem: key for key in standard_configs()}
    beside = {path.stem: str(path) for path in Path(name).parent.glob("*.py")}
    by_stem = {**standard, **beside}
    close = nearest(Path(name).stem, by_stem)
    return f"Did you mean '{by_stem[close]}'?" if close else _ALL


def _places(config: ConfigDict, above: str = "") -> Iterator[tuple[str, ConfigDict]]:
    """Yield each key, nested ones as `outer.inner`, with the config that holds it."""
    for key, value in config.items():
        yield above + key, config
        if isinstance(value, ConfigDict):
            yield from _places(value, f"{above}{key}.")
