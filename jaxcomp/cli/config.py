"""Configs of the command line: files, names, overrides."""

import ast
import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import check, nearest, suggest

if TYPE_CHECKING:
    from ml_collections import ConfigDict

FLAGS = (
    *("config", "coordinator", "debug", "dry-run", "evaluate", "join-timeout"),
    *("peer-timeout", "process", "processes", "split", "suffix", "workdir"),
)
_ALL = "`jaxcomp list configs` shows the standard ones"
_EXAMPLES = {"get_config": "configs/default.py", "update": "configs/parts/dgc.py"}
_PACKAGE = Path(__file__).resolve().parent.parent
_BOOLS = {"1": "True", "true": "True", "0": "False", "false": "False"}


def standard_configs() -> dict[str, Path]:
    """The files of the standard configs and parts by their names.

    Example:
      >>> standard_configs()["cifar10_dgc"].name
      'cifar10_dgc.py'
    """
    folder = _parent() / "configs"
    files = sorted(path for path in folder.rglob("*.py") if path.stem != "__init__")
    names = {str(path.relative_to(folder).with_suffix("")): path for path in files}
    # What is in there are many runs: `jaxcomp sweep` takes them.
    return {n: path for n, path in names.items() if not n.startswith("sweeps/")}


def is_part(name: str) -> bool:
    """Whether a standard config is a part, which changes a whole one before it.

    Example:
      >>> is_part("parts/dgc"), is_part("cifar10_dgc")
      (True, False)
    """
    return name.startswith("parts/")


def find_config(name: str) -> Path:
    """The path of a config: a file, or a standard config by its name.

    Example:
      >>> find_config("default").name, str(find_config("of/my/own.py"))
      ('default.py', 'of/my/own.py')
    """
    path = Path(name)
    return path if path.is_file() else standard_configs().get(name, path)


def let_configs_import() -> None:
    """Let config files say `from configs import default`, outside of a checkout too."""
    if importlib.util.find_spec("configs") is None:
        sys.path.append(str(_parent()))  # last: it hides nothing


def _parent() -> Path:
    """The folder that holds configs/: setup.py copies it to `shipped` of the wheel."""
    shipped = _PACKAGE / "shipped"
    return shipped if shipped.is_dir() else _PACKAGE.parent


def load_config(names: str) -> "ConfigDict":
    """The config of a file, changed by parts, each of which is a file too.

    The first file has a function `get_config`, which returns a whole config. The others
    have a function `update(config)`, which changes a few keys of it, in this order.

    Args:
      names: paths of files, or names of standard configs and parts, with commas between
        them; what stands after the colon of one is an argument of its function.
    """
    whole, *parts = split_names(names)
    config = _whole(whole)
    for part in parts:
        _update(config, part)
    return config


def split_names(names: str) -> list[str]:
    """The files that a text names; commas within brackets do not divide it.

    Example:
      >>> split_names("cifar10_exact,parts/dgc"), split_names("a.py:f(x=1, y=2)")
      (['cifar10_exact', 'parts/dgc'], ['a.py:f(x=1, y=2)'])
    """
    found = re.split(r",(?![^([]*[)\]])", names)
    if not all(found):
        what = "is empty" if not names else f"{names!r} names nothing beside a comma"
        raise UserError(f"--config {what}: name a file, such as configs/default.py")
    return found


def _whole(name: str) -> "ConfigDict":
    """What the `get_config` of a file returns."""
    from ml_collections import ConfigDict

    scope, arguments = _run(name)
    if "get_config" not in scope and callable(scope.get("update")):
        example = f"--config=default,{name}"
        message = "is a part, which changes a whole config: name one before it"
        raise UserError(f"--config={name} {message}, such as {example}")
    config = _function(name, scope, "get_config", arguments)()
    if not isinstance(config, ConfigDict):
        message = f"its get_config returns {config!r}, not a ConfigDict"
        raise UserError(f"--config={name}: {message}")
    return config


def _update(config: "ConfigDict", name: str) -> None:
    """Change a config by the `update` of a file; new keys are refused."""
    scope, arguments = _run(name)
    if "update" not in scope and callable(scope.get("get_config")):
        message = (
            f"{name} is a whole config, and only the first file of --config is one. "
            "What follows has a function update(config); configs/parts/dgc.py shows one"
        )
        raise UserError(message)
    known = dict(_places(config))
    try:
        _function(name, scope, "update", [config, *arguments])()
    except (AttributeError, KeyError, TypeError) as error:
        message = f"does not fit the config before it: {error}"
        raise UserError(f"--config: {name} {message}") from error
    for key, _ in _places(config):
        if key not in known:
            message = f"sets {key!r}, which the config before it does not have"
            raise UserError(f"--config: {name} {message}. {suggest(key, known)}")


def _run(name: str) -> tuple[dict[str, Any], list[str]]:
    """The names that a file defines, and the argument after a colon, if any."""
    path, *arguments = name.split(":", 1)
    let_configs_import()
    file = find_config(path)
    try:
        code = compile(file.read_bytes(), str(file), "exec")
    except OSError as error:
        raise UserError(f"--config={path}: {error.strerror}. {_near(path)}") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(f"--config={path} is not a Python file: {error}") from None
    scope = {"__name__": file.stem, "__file__": str(file)}
    exec(code, scope)
    return scope, arguments


def _function(
    name: str, scope: dict[str, Any], function: str, arguments: Sequence[Any]
) -> Callable[[], Any]:
    """A call of a function of a file, which is there and takes the arguments."""
    found = scope.get(function)
    if not callable(found):
        path, example = name.partition(":")[0], _EXAMPLES[function]
        message = f"has no function {function}; {example} shows one"
        raise UserError(f"--config={path} {message}")
    try:
        inspect.signature(found).bind(*arguments)
    except TypeError as error:
        message = f"its {function} takes other arguments: {error}"
        raise UserError(f"--config={name}: {message}") from None
    return functools.partial(found, *arguments)


def override(
    config: "ConfigDict", words: Sequence[str], flags: Iterable[str] = FLAGS
) -> "ConfigDict":
    """Set keys of a config from the command line, and lock it.

    Args:
      config: as its file has it; changed in place.
      words: of the command line, `--config.KEY=VALUE` or `--config.KEY VALUE`.
      flags: of the command, to suggest one for an unknown word.
    """
    valid = dict(_places(config))
    for path, text in _assignments(words, flags):
        if path not in valid:
            message = f"the config has no key {path!r}. {suggest(path, valid)}"
            raise UserError(message)
        if text is None:
            raise UserError(f"--config.{path} needs a value: --config.{path}=VALUE")
        part, key = valid[path], path.rpartition(".")[2]
        part[key] = _value(part.get_type(key), path, text)
    return config.lock()


def config_of(args: Any) -> "ConfigDict":
    """The config of a command: of `--config`, with the keys that its words set."""
    flags = [name.replace("_", "-") for name in vars(args)]
    return override(load_config(args.config), args.config_keys, flags)


def changed_keys(config: "ConfigDict", words: Sequence[str]) -> dict[str, Any]:
    """The keys that `override` sets by these words, with the values that they got."""
    places = dict(_places(config))
    paths = [path for path, _ in _assignments(words)]
    return {path: places[path][path.rpartition(".")[2]] for path in paths}


def _assignments(
    words: Sequence[str], flags: Iterable[str] = FLAGS
) -> Iterator[tuple[str, str | None]]:
    """Each key of a command line and the text of its value, None where it has none."""
    left = iter(words)
    for word in left:
        found = re.fullmatch(r"--?config\.([^=]+)(=(.*))?", word, re.DOTALL)
        if not found:
            hint = suggest(word.lstrip("-").partition("=")[0], flags)
            raise UserError(f"unknown argument {word!r}. {hint}")
        yield found[1], found[3] if found[2] else next(left, None)


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
    names = sorted(standard_configs(), key=is_part, reverse=True)  # the last one counts
    beside = {path.stem: str(path) for path in Path(name).parent.glob("*.py")}
    by_stem = {**{Path(key).stem: key for key in names}, **beside}
    by_stem |= {key: key for key in names if is_part(key) and is_part(name)}
    close = nearest(name if is_part(name) else Path(name).stem, by_stem)
    return f"Did you mean '{by_stem[close]}'?" if close else _ALL


def _places(
    config: "ConfigDict", above: str = ""
) -> "Iterator[tuple[str, ConfigDict]]":
    """Yield each key, nested ones as `outer.inner`, with the config that holds it."""
    for key, value in config.items():
        yield above + key, config
        if isinstance(value, type(config)):
            yield from _places(value, f"{above}{key}.")
