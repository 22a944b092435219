"""What a sweep is: settings, searches, and the plan of its runs."""

import hashlib
import itertools
import json
import math
import re
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from jaxcomp.core.errors import UserError, within
from jaxcomp.core.specs import Range, build, check, suggest


class Search(NamedTuple):
    """A number that is looked for, such as a step size."""

    start: float
    factor: float
    most: int  # values that are tried


def search(start: float, factor: float = 2.0, most: int = 9) -> Search:
    """Look for the best value of a key, doubling and halving until it lies inside.

    Each value that is tried is a run of the sweep. It begins with `start`, `start *
    factor` and `start / factor`. While the best of all values is the largest or the
    smallest, the next one on that side is tried. A run that fails, such as one that
    diverges, is worse than all others.

    Args:
      start: the first value, positive.
      factor: between neighbouring values, more than 1.
      most: how many values are tried, at least 3.

    Example:
      >>> search(start=0.1)
      Search(start=0.1, factor=2.0, most=9)
      >>> search(start=-1)
      Traceback (most recent call last):
      jaxcomp.UserError: search: start is a positive number, not -1

    References:
      Koloskova, Lin, Stich, Jaggi, "Decentralized Deep Learning with Arbitrary
      Communication Compression", 2020, https://arxiv.org/abs/1907.09356
    """
    for name, value, least in (("start", start, 0), ("factor", factor, 1)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least < value < math.inf:
            above = "a positive number" if not least else "a number above 1"
            raise UserError(f"search: {name} is {above}, not {value!r}")
    check(Annotated[int, Range(least=3)], "search: most", most)
    return Search(float(start), float(factor), most)


def proposals(looked: Search, scores: Mapping[float, float]) -> list[float]:
    """The values to try next; none where the search has ended.

    Args:
      looked: what is looked for.
      scores: of the values that have been tried, more is better; -inf where a run has
        failed.

    Example:
      >>> proposals(search(1.0), {})
      [1.0, 2.0, 0.5]
      >>> proposals(search(1.0), {1.0: 0.3, 2.0: 0.4, 0.5: 0.1})
      [4.0]
      >>> proposals(search(1.0), {1.0: 0.3, 2.0: 0.4, 0.5: 0.1, 4.0: 0.2})
      []
    """
    powers = {p: value_at(looked, p) for p in range(-looked.most, looked.most + 1)}
    tried = {p: scores[value] for p, value in powers.items() if value in scores}
    first = [p for p in (0, 1, -1) if p not in tried]
    if first:
        return [powers[p] for p in first]
    # Of equal ones the smallest: where all of them fail, that is the side to look at.
    best = max(sorted(tried), key=lambda p: tried[p])
    beside = {max(tried): max(tried) + 1, min(tried): min(tried) - 1}
    return [powers[beside[best]]] if best in beside and len(tried) < looked.most else []


def value_at(looked: Search, power: int) -> float:
    """A value of a search, in few digits, so that it is the same wherever it is made.

    Example:
      >>> value_at(search(0.1), 1), value_at(search(0.1), -3)
      (0.2, 0.0125)
    """
    return float(f"{looked.start * looked.factor**power:.6g}")


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


# From words such as `--config.seed=1` to the whole config.
Configure = Callable[[Sequence[str]], Any]
# From the scores of runs that have ended, -inf of failed ones, to all runs that are
# known then: more of them come while a search goes on.
Plan = Callable[[Mapping[str, float]], "list[PlannedRun]"]


class PlannedRun(NamedTuple):
    """One run of a sweep."""

    name: str  # of its folder
    setting: Setting
    config: Mapping[str, Any]  # whole


def make_plan(sweep: Sweep, configure: Configure) -> Plan:
    """Make the runs of a sweep; every key and value is checked at once.

    A run is known by its whole config. What is added to a file of a sweep later is run
    beside what is there, and a run whose config has changed is another run.

    Args:
      sweep: from its file.
      configure: makes the config of words, and refuses what is wrong.

    Raises:
      UserError: a key or value is wrong, or two runs are the same.
    """
    settings = [s if isinstance(s, Setting) else Setting(s) for s in sweep.settings]
    if not settings:
        raise UserError("the sweep has no run")

    def run_of(setting: Setting) -> PlannedRun:
        keys = {**sweep.always, **setting.meant, **setting.values}
        words = tuple(f"--config.{key}={_text(value)}" for key, value in keys.items())
        config = json.loads(configure(words).to_json())
        return PlannedRun(_name(setting, config), setting, config)

    def of_one(setting: Setting) -> Plan:
        key = _searched(setting)
        if key is None:
            run = run_of(setting)
            return lambda scores: [run]
        return _searching(setting, key, run_of)

    plans = [of_one(setting) for setting in settings]
    _check_different([run for plan in plans for run in plan({})])
    return lambda scores: [run for plan in plans for run in plan(scores)]


def differing(runs: Iterable[PlannedRun]) -> list[str]:
    """The keys in which the configs of runs differ.

    Example:
      >>> runs = [Run("", Setting({}), {"seed": n, "overlap": 2}) for n in (0, 1)]
      >>> differing(runs)
      ['seed']
    """
    configs = [run.config for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [k for k in keys if len({json.dumps(c.get(k)) for c in configs}) > 1]


def _searching(
    setting: Setting, key: str, run_of: Callable[[Setting], PlannedRun]
) -> Plan:
    """The plan of one setting in which a value is looked for."""
    looked: Search = setting.values[key]
    made: dict[float, PlannedRun] = {}

    def plan(scores: Mapping[str, float]) -> list[PlannedRun]:
        # A restart knows the scores of all trials; each of them leads to the next.
        while True:
            known = {
                v: scores[run.name] for v, run in made.items() if run.name in scores
            }
            new = [v for v in proposals(looked, known) if v not in made]
            if not new:
                return list(made.values())
            for value in new:
                values = {**setting.values, key: value}
                made[value] = run_of(setting._replace(values=values))

    return plan


def _searched(setting: Setting) -> str | None:
    """The key that is looked for, if any."""
    keys = [k for k, value in setting.values.items() if isinstance(value, Search)]
    if len(keys) > 1:
        raise UserError(f"a run looks for one value, not for {' and '.join(keys)}")
    return keys[0] if keys else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _name(setting: Setting, config: Mapping[str, Any]) -> str:
    """A folder name that people can read, and that no other config has."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", setting.title)[:48].strip("-.")
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return f"{slug or 'run'}-{digest[:6]}"


def _check_different(runs: Sequence[PlannedRun]) -> None:
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        config = json.dumps(run.config, sort_keys=True)
        if config in seen:
            twice = f"{seen[config].setting.title!r} and {run.setting.title!r}"
            raise UserError(f"two runs of the sweep are the same: {twice}")
        seen[config] = run


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
        raise UserError(
            f"its get_sweep returns {sweep!r}, not a jaxcomp.cli.sweeps.Sweep"
        )
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
