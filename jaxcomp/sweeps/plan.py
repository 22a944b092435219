"""From the settings of a sweep to its runs, those of searches one after the other."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.sweeps.search import Search, proposals
from jaxcomp.sweeps.settings import Setting, Sweep

__all__ = ["Plan", "Run", "differing", "make_plan"]

# From words such as `--config.seed=1` to the whole config.
Configure = Callable[[Sequence[str]], Any]
# From the scores of runs that have ended, -inf of failed ones, to all runs that are
# known then: more of them come while a search goes on.
Plan = Callable[[Mapping[str, float]], "list[Run]"]


class Run(NamedTuple):
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

    def run_of(setting: Setting) -> Run:
        keys = {**sweep.always, **setting.meant, **setting.values}
        words = tuple(f"--config.{key}={_text(value)}" for key, value in keys.items())
        config = json.loads(configure(words).to_json())
        return Run(_name(setting, config), setting, config)

    def of_one(setting: Setting) -> Plan:
        key = _searched(setting)
        if key is None:
            run = run_of(setting)
            return lambda scores: [run]
        return _searching(setting, key, run_of)

    plans = [of_one(setting) for setting in settings]
    _check_different([run for plan in plans for run in plan({})])
    return lambda scores: [run for plan in plans for run in plan(scores)]


def differing(runs: Iterable[Run]) -> list[str]:
    """The keys in which the configs of runs differ.

    Example:
      >>> runs = [Run("", Setting({}), {"seed": n, "overlap": 2}) for n in (0, 1)]
      >>> differing(runs)
      ['seed']
    """
    configs = [run.config for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [k for k in keys if len({json.dumps(c.get(k)) for c in configs}) > 1]


def _searching(setting: Setting, key: str, run_of: Callable[[Setting], Run]) -> Plan:
    """The plan of one setting in which a value is looked for."""
    looked: Search = setting.values[key]
    made: dict[float, Run] = {}

    def plan(scores: Mapping[str, float]) -> list[Run]:
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


def _check_different(runs: Sequence[Run]) -> None:
    seen: dict[str, Run] = {}
    for run in runs:
        config = json.dumps(run.config, sort_keys=True)
        if config in seen:
            twice = f"{seen[config].setting.title!r} and {run.setting.title!r}"
            raise UserError(f"two runs of the sweep are the same: {twice}")
        seen[config] = run
