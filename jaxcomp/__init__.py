"""Compressed gradient exchange for data-parallel training in JAX.

    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.01)")
    tx = optax.chain(jaxcomp.distributed(exchange, seed=0), optax.sgd(0.1))

The whole method is that one transformation. README.md shows the rest;
docs/architecture.md draws the way of one step through the rooms.
"""

import ast
import functools
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxcomp._version import __version__ as __version__

# Where parts are that programs and configs may import by an older path.
_MOVED = {
    "base": "core.types",
    "clipping": "transforms.clipping",
    "coding": "core.coding",
    "cost": "wire.cost",
    "errors": "core.errors",
    "gossip": "mixers.gossip",
    "infos": "exchanges._common",
    "local": "mixers.local",
    "loggers": "runs.loggers",
    "optimizers": "transforms.optimizers",
    "overlap": "exchanges.overlap",
    "problems": "convex.problems",
    "specs": "core.specs",
    "sweeps": "cli.sweeps",
    "targets": "wire.targets",
    "tasks": "training.tasks",
    "trees": "core.trees",
}


@functools.cache
def _stub() -> tuple[dict[str, tuple[str, str]], list[str]]:
    """What `__init__.pyi` says: the module and name of each name, and `__all__`."""
    body = ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    places = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (names,) = [ast.literal_eval(x.value) for x in body if isinstance(x, ast.Assign)]
    return places, names


def __getattr__(name: str) -> Any:
    """A public name, or a part of the package; found once, and kept."""
    if name == "__all__":
        value: Any = _stub()[1]
    elif name.startswith("_"):
        raise AttributeError(f"module 'jaxcomp' has no attribute {name!r}")
    else:
        value = _found(*_stub()[0].get(name, (__name__, name)))
    globals()[name] = value
    return value


def _found(module: str, name: str) -> Any:
    """What a module defines, or the module below it."""
    if module != __name__:
        value = getattr(importlib.import_module(module), name, None)
        if value is not None:
            return value
    try:
        return importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{module}.{name}":
            raise  # it needs a package that is not installed
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_stub()[0], *_stub()[1]})


class _Package(ModuleType):
    """A package of which a module has the name of a function, such as `topology`.

    An import of the module by an older path leaves the function where it is.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in vars(self)):
            super().__setattr__(name, value)


class _Moved(MetaPathFinder, Loader):
    """Finds `jaxcomp.base` and what is below it where it is now: the same module."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        top, *rest = fullname.split(".")
        known = top == "jaxcomp" and rest and rest[0] in _MOVED
        return ModuleSpec(fullname, self) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _, first, *rest = spec.name.split(".")
        now = importlib.import_module(".".join(["jaxcomp", _MOVED[first], *rest]))
        spec.loader_state = now.__spec__
        if hasattr(now, "__path__"):
            now.__class__ = _Package
        return now

    def exec_module(self, module: ModuleType) -> None:
        """It has run; what the import has changed of it is put back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


# Before the finder of files, which would load a second copy of what lies in a package.
sys.meta_path.insert(0, _Moved())
