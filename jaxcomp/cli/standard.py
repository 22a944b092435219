"""The standard configs: the folder configs/ of a checkout, or its copy in the wheel."""

import importlib.util
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


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
