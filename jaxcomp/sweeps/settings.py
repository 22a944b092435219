"""What a sweep runs: a config, and the settings in which its runs differ."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.sweeps.search import Search

__all__ = ["Setting", "Sweep", "product"]

_NONE: Mapping[str, Any] = MappingProxyType({})


class Setting(NamedTuple):
    """What one run sets, and what people call it."""

    values: Mapping[str, Any]  # keys of the config
    labels: Mapping[str, str] = _NONE  # such as method: "DGC"
    meant: Mapping[str, Any] = _NONE  # keys of the config that the labels stand for

    @property
    def title(self) -> str:
        """Labels and values, for lines of a console.

        Example:
          >>> Setting({"seed": 1}, {"method": "DGC"}, {"memory": "dgc"}).title
          'DGC, seed=1'
        """
        values = (f"{key}={value}" for key, value in self.values.items())
        return ", ".join([*self.labels.values(), *values])


class Sweep(NamedTuple):
    """Runs of one config.

    Example:
      >>> sweep = Sweep("configs/default.py", product(seed=range(2)))
      >>> [setting.values for setting in sweep.settings]
      [{'seed': 0}, {'seed': 1}]
    """

    config: str  # as train.py takes it, with parts after commas
    settings: Sequence[Setting | Mapping[str, Any]]  # a run for each
    always: Mapping[str, Any] = _NONE  # keys that all runs set
    # Which figure of metrics.csv says how good a run is, and whether more is better.
    best: str = "max test_accuracy"


def product(**axes: Any) -> list[Setting]:
    """All combinations of the values of some keys.

    Args:
      **axes: a key of the config and its values, one after the other. Or any name, such
        as `method`, and several keys for each label of it. A single value is set in all
        runs, and `search(...)` is looked for in each.

    Example:
      >>> methods = {"exact": {"exchange": "exact"}, "signs": {"compressor": "sign"}}
      >>> for setting in product(method=methods, seed=(0, 1)):
      ...     print(setting.title, setting.meant)
      exact, seed=0 {'exchange': 'exact'}
      exact, seed=1 {'exchange': 'exact'}
      signs, seed=0 {'compressor': 'sign'}
      signs, seed=1 {'compressor': 'sign'}
    """
    choices = [_choices(name, values) for name, values in axes.items()]
    return [_joined(parts) for parts in itertools.product(*choices)]


def _choices(name: str, values: Any) -> list[Setting]:
    """The settings of one axis."""
    if isinstance(values, Mapping):
        for label, keys in values.items():
            if not isinstance(keys, Mapping):
                message = f"sets keys of the config, such as {{{label!r}: {{...}}}}"
                raise UserError(f"{name}: each label {message}, not {keys!r}")
        found = [Setting({}, {name: str(n)}, keys) for n, keys in values.items()]
    elif isinstance(values, Iterable) and not isinstance(values, str | Search):
        found = [Setting({name: value}) for value in values]
    else:
        found = [Setting({name: values})]
    if not found:
        raise UserError(f"{name} has no values, so that there is no run at all")
    return found


def _joined(parts: Iterable[Setting]) -> Setting:
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    meant: dict[str, Any] = {}
    for values_of, labels_of, meant_by in parts:
        new = values_of.keys() | meant_by.keys()
        if twice := sorted(new & (values.keys() | meant.keys())):
            raise UserError(f"{twice[0]} is set by two axes of one product")
        values |= values_of
        labels |= labels_of
        meant |= meant_by
    return Setting(values, labels, meant)
