"""The settings of a run: its config, as far as its method makes use of it."""

import re
from typing import NamedTuple

from jaxcomp.report.provenance import flatten
from jaxcomp.report.run_folder import Run

__all__ = ["Settings", "settings_of"]

# Where nothing is lost, there is nothing that these memories could keep.
_KEEPERS = ("error_feedback", "ef21")
_OF_COMPRESSION = ("policy", "scope")


class Settings(NamedTuple):
    """What a run was asked for, and what of it means nothing."""

    config: dict[str, str]  # by dotted names; the compressor is "none" if it is unused
    unused: frozenset[str] = frozenset()  # other keys

    def of(self, key: str) -> str:
        """The value of a key; "" where there is none, or no use for it."""
        return "" if key in self.unused else self.config.get(key, "")


def settings_of(run: Run) -> Settings:
    """The settings of a run.

    A compressor is used if the method, as environment.json has it, names it.

    Example:
      >>> asked = {"exchange": "exact", "compressor": "sign", "scope": "per_leaf"}
      >>> found = settings_of(Run("a", asked, {}, {}))
      >>> found.config["compressor"], found.of("scope")
      ('none', '')
    """
    config = flatten(run.config)
    if not config.get("compressor"):
        return Settings(config)
    method = str(run.environment.get("method") or "")
    if _names(config.get("exchange", ""))[:1] == ["exact"]:
        unused = {*_OF_COMPRESSION}
        if _names(config.get("memory", ""))[:1] in ([name] for name in _KEEPERS):
            unused.add("memory")
    elif method and not {*_names(config["compressor"])} & {*re.findall(r"\w+", method)}:
        unused = set()
    else:
        return Settings(config)
    return Settings(config | {"compressor": "none"}, frozenset(unused))


def _names(spec: str) -> list[str]:
    """The names in a spec, without their arguments.

    Example:
      >>> _names("top_k(keep=0.1) | cast(dtype='float16')")
      ['top_k', 'cast']
    """
    return re.findall(r"\w+", re.sub(r"\([^()]*\)", "", spec))
