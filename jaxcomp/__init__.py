"""Compressed gradient exchange for data-parallel training in JAX.

    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.01)")
    tx = optax.chain(jaxcomp.distributed(exchange, seed=0), optax.sgd(0.1))

The whole method is that one link. README.md shows the rest; docs/architecture.md draws
the way of one step through the folders.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxcomp._version import __version__

if TYPE_CHECKING:
    from jaxcomp.public import *  # noqa: F403

# Parts that are imported when they are asked for. All but `study` need the extra
# `train`; the library alone is jax and optax.
_ON_DEMAND = ("data", "models", "report", "study", "training")


def __getattr__(name: str) -> Any:
    """A public name, or a part of the package; found once, and kept.

    The first name imports jax and all others, which `jaxcomp --help` does without.
    """
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'jaxcomp' has no attribute {name!r}")
    value = _part(name)
    if value is None:
        public = importlib.import_module("jaxcomp.public")
        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module 'jaxcomp' has no attribute {name!r}")
        value = getattr(public, name)
    globals()[name] = value
    return value


def _part(name: str) -> Any:
    """A module of the package; None if there is none of that name."""
    try:
        return importlib.import_module(f"jaxcomp.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"jaxcomp.{name}":
            raise  # it needs a package that is not installed
    return None


def __dir__() -> list[str]:
    return [*importlib.import_module("jaxcomp.public").__all__, *_ON_DEMAND]
