"""The config of a command line: a Python file, and the keys that are set after it."""

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import DEFINE_config_dict

from jaxcomp.errors import UserError
from jaxcomp.specs import check, nearest, suggest

__all__ = ["load_config", "override"]


def load_config(path: str) -> ConfigDict:
    """What the `get_config` of a file returns.

    Args:
      path: of the file; what stands after a colon is the argument of `get_config`.
    """
    name, *arguments = path.split(":", 1)
    if not name:
        message = "--config is empty: name a file, such as configs/default.py"
        raise UserError(message)
    try:
        code = compile(Path(name).read_bytes(), name, "exec")
    except OSError as error:
        raise UserError(f"--config={name}: {error.strerror}. {_near(name)}") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(f"--config={name} is not a Python file: {error}") from None
    scope = {"__name__": Path(name).stem, "__file__": name}
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


def override(config: ConfigDict, words: Sequence[str]) -> ConfigDict:
    """The config with keys that a command line sets, locked.

    Args:
      config: as its file has it.
      words: of the command line, `--config.KEY=VALUE` or `--config.KEY VALUE`.
    """
    valid = list(_paths(config))
    for word in words:
        key = re.match(r"--?(?:no)?config\.([^=]+)", word)
        if key and key[1] not in valid:
            message = f"the config has no key {key[1]!r}. {suggest(key[1], valid)}"
            raise UserError(message)
    values = flags.FlagValues()
    argv = ["train.py", *words]
    try:
        DEFINE_config_dict("config", config, flag_values=values, sys_argv=argv)
        rest = values(argv)[1:]
    except flags.IllegalFlagValueError as error:
        wrong = re.match(r"flag --config\.(\w+)=(.*?): ", str(error), re.DOTALL)
        if wrong and wrong[1] in config:
            kind = config.get_type(wrong[1])
            check(kind, wrong[1], wrong[2])
        raise UserError(str(error)) from None
    except flags.Error as error:
        raise UserError(str(error)) from None
    if rest:
        raise UserError(f"unknown arguments: {' '.join(rest)}")
    return values.config


def _near(name: str) -> str:
    """The config file whose name is the most alike, for a message."""
    folders = (Path(name).parent.glob("*.py"), Path("configs").rglob("*.py"))
    by_stem = {path.stem: path for found in reversed(folders) for path in found}
    close = nearest(Path(name).stem, by_stem)
    return f"Did you mean '{by_stem[close]}'?" if close else "See configs/"


def _paths(config: ConfigDict, above: str = "") -> Iterator[str]:
    """The keys of a config, those of configs in it after a dot."""
    for key, value in config.items():
        yield above + key
        if isinstance(value, ConfigDict):
            yield from _paths(value, f"{above}{key}.")
