"""Many runs of one config, as a file says it: a grid of settings, each a run.

    jaxcomp sweep configs/sweeps/digits.py

`jaxcomp.cli.sweep` trains what is planned here.
"""

import hashlib
import itertools
import json
import re
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxcomp.core.errors import UserError, within
from jaxcomp.core.specs import check

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
        runs.

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
    elif isinstance(values, Iterable) and not isinstance(values, str):
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


# From words such as `--config.seed=1` to the whole config.
Configure = Callable[[Sequence[str]], Any]


class PlannedRun(NamedTuple):
    """One run of a sweep."""

    name: str  # of its folder
    setting: Setting
    config: Mapping[str, Any]  # whole


def make_plan(sweep: Sweep, configure: Configure) -> list[PlannedRun]:
    """Make the runs of a sweep; every key and value is checked at once.

    A run is known by its whole config. What is added to a file of a sweep later is run
    beside what is there, and a run whose config has changed is another run.

    Args:
      sweep: from its file.
      configure: makes the config of words, and refuses what is wrong.

    Raises:
      UserError: a key or value is wrong, or two runs are the same.
    """
    settings = []
    for given in sweep.settings:
        if not isinstance(given, Setting):
            check(Mapping, "each of settings", given)
        settings.append(given if isinstance(given, Setting) else Setting(given))
    if not settings:
        raise UserError("the sweep has no run")
    runs: dict[str, PlannedRun] = {}
    for setting in settings:
        keys = {**sweep.always, **setting.meant, **setting.values}
        words = [f"--config.{key}={_text(value)}" for key, value in keys.items()]
        config = json.loads(configure(words).to_json())
        whole = json.dumps(config, sort_keys=True)
        if whole in runs:
            twice = f"{runs[whole].setting.title!r} and {setting.title!r}"
            raise UserError(f"two runs of the sweep are the same: {twice}")
        # A folder name that people can read, and that no other config has.
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", setting.title)[:48].strip("-.")
        digest = hashlib.sha256(whole.encode()).hexdigest()[:6]
        runs[whole] = PlannedRun(f"{slug or 'run'}-{digest}", setting, config)
    return list(runs.values())


def differing(runs: Iterable[PlannedRun]) -> list[str]:
    """The keys in which the configs of runs differ.

    Example:
      >>> configs = [{"seed": 0, "overlap": 2}, {"seed": 1, "overlap": 2}]
      >>> differing(PlannedRun("", Setting({}), config) for config in configs)
      ['seed']
    """
    configs = [run.config for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [k for k in keys if len({json.dumps(c.get(k)) for c in configs}) > 1]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


_KINDS = {"config": str, "settings": list | tuple, "always": Mapping, "best": str}


def read_sweep(file: Path) -> Sweep:
    """The sweep that a file describes.

    Args:
      file: a program, whose function `get_sweep` returns a `Sweep`.

    Raises:
      UserError: there is no such file, or it is none of a sweep.
    """
    with within(str(file)):
        try:
            found = runpy.run_path(str(file), run_name=file.stem)
        except OSError as error:
            raise UserError(str(error.strerror)) from None
        except (SyntaxError, ValueError) as error:
            raise UserError(f"it is not a Python file: {error}") from None
        get_sweep = found.get("get_sweep")
        if not callable(get_sweep):
            message = "it has no function get_sweep; configs/sweeps/digits.py shows one"
            raise UserError(message)
        sweep = get_sweep()
        if not isinstance(sweep, Sweep):
            place = "a jaxcomp.cli.sweeps.Sweep"
            raise UserError(f"its get_sweep returns {sweep!r}, not {place}")
        for name, kind in _KINDS.items():
            check(kind, name, getattr(sweep, name))
        return sweep
