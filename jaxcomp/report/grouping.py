"""Runs of one setting, what they are called, and whose bytes and models they have."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxcomp.report.run_folder import Run, flatten
from jaxcomp.runs.keys import SAME

# What may differ between the runs of a group.
_REPEATED = {"seed", *SAME}
# Keys whose values say what they are without their names, in the order of a label.
_SPEAKING = (
    *("mixer", "topology", "compressor", "memory", "exchange", "scope"),
    *("optimizer", "task", "model", "dataset", "schedule"),
)
_NOTHING = ("", "none", "null", "–")
# Where nothing is lost, there is nothing that these memories could keep.
_KEEPERS = ("error_feedback", "ef21")


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
        unused = {"policy", "scope"}
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
      >>> _names("top_k(keep=0.01) | cast(dtype='float16')")
      ['top_k', 'cast']
    """
    return re.findall(r"\w+", _bare(spec))


def _bare(text: str) -> str:
    """A text without its brackets and what is in them, from the innermost on."""
    inner = re.sub(r"\([^()]*\)", "", text)
    return text if inner == text else _bare(inner)


class RunGroup(NamedTuple):
    """Runs of one config with several seeds."""

    key: str  # the same on every page of the same runs
    label: str
    runs: Sequence[Run]
    short: str = ""  # the label where there is little room; "" if none is unique


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Put runs together that differ only in the seed, in the order of their coming.

    Example:
      >>> sign, exact = {"compressor": "sign"}, {"compressor": "none"}
      >>> runs = [Run("a", sign | {"seed": s}, {}, {}) for s in (0, 1)]
      >>> [(g.label, len(g.runs)) for g in group_runs([*runs, Run("b", exact, {}, {})])]
      [('sign', 2), ('compressor none', 1)]
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_identity(run), []).append(run)
    members = list(found.values())
    keys = different_keys(members)
    labels = _unique([_label(group[0], keys) for group in members], members)
    parts = zip(labels, members, _shorts(labels), strict=True)
    return [RunGroup(f"g{i}", *part) for i, part in enumerate(parts)]


def different_keys(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The dotted keys of configs in which groups differ, without the seed.

    A key counts between those who make use of it.

    Example:
      >>> configs = {"seed": 0, "workers": 4}, {"seed": 1, "workers": 8}
      >>> different_keys([[Run("a", config, {}, {})] for config in configs])
      ['workers']
    """
    found = [settings_of(group[0]) for group in groups if group[0].config]
    keys = dict.fromkeys(key for settings in found for key in settings.config)

    def differs(key: str) -> bool:
        return len({s.config.get(key) for s in found if key not in s.unused}) > 1

    return [k for k in keys if k.partition(".")[0] not in _REPEATED and differs(k)]


def _identity(run: Run) -> str:
    config, unused = settings_of(run)
    left_out = {*_REPEATED, *unused}
    kept = {k: v for k, v in config.items() if k.partition(".")[0] not in left_out}
    # Without a config nothing says what else is the same run.
    return json.dumps(kept, sort_keys=True) if kept else f"folder {run.name}"


def _label(run: Run, keys: Sequence[str]) -> str:
    settings, sweep = settings_of(run), run.environment.get("sweep") or {}
    parts = [str(label) for label in sweep.get("labels", {}).values()]
    told = sweep.get("keys", ())  # by these labels
    keys = [key for key in keys if key.partition(".")[0] not in told]
    # An exchange with a way of its own is what a compressor is to others.
    first = ["exchange"] if settings.of("compressor") == "none" else []
    speaking = [key for key in dict.fromkeys((*first, *_SPEAKING)) if key in keys]
    values = [settings.of(key) for key in speaking]
    parts += [value for value in values if value not in _NOTHING]
    others = [key for key in keys if key not in _SPEAKING]
    parts += [f"{key}={settings.of(key)}" for key in others if settings.of(key)]
    if not parts and speaking:
        return f"{speaking[0]} none"
    return ", ".join(parts)


def _shorts(labels: Sequence[str]) -> list[str]:
    """Labels without arguments, and if that tells them apart, only their first names.

    Example:
      >>> _shorts(["top_k(keep=0.1), gather", "sign, gather"])
      ['top_k', 'sign']
      >>> _shorts(["top_k(keep=0.1), workers=2", "top_k(keep=0.1), workers=4"])
      ['top_k, workers=2', 'top_k, workers=4']
    """
    bare = [_bare(text) for text in labels]
    first = [re.split(r"[,|]", text)[0].strip() for text in bare]
    for names in (first, bare):
        if len(set(names)) == len(names):
            return names
    return [""] * len(labels)


def _unique(labels: list[str], groups: Sequence[Sequence[Run]]) -> list[str]:
    """The labels, or the names of folders where labels do not tell groups apart."""
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    names = [group[0].name for group in groups]
    if len(set(names)) == len(names):
        return names
    return [f"{number} {name}" for number, name in enumerate(names, 1)]


Names = dict[str, Any]  # of a config, or the facts of an environment


def run_title(config: Names, facts: Names) -> str:
    """One line that says what was trained, and how.

    Args:
      config: of a training run.
      facts: its environment.

    Returns:
      The parts that are known: method, workers, and model on data.

    Example:
      >>> config = {"workers": 4, "model": "resnet20", "dataset": "cifar10"}
      >>> run_title(config, {"method": "gather(sign)"})
      'gather(sign), 4 workers, resnet20 on cifar10'
      >>> run_title(config | {"task": "my.tasks:text(length=9)"}, {})
      '4 workers, my.tasks:text(length=9)'
      >>> run_title(config, {"model": "lstm", "data": "letters"})
      '4 workers, lstm on letters'
    """
    task = _name(config, "task")
    trained = [_name(facts, "model"), _name(facts, "data")]
    # The config's model and dataset may not be those of a task of somebody's own.
    if not any(trained) and task in ("", "classification"):
        trained = [_name(config, "model"), _name(config, "dataset")]
    elif not any(trained):
        trained = [task]
    parts = [method_names(config, facts), workers_text(config)]
    return ", ".join(filter(None, [*parts, " on ".join(filter(None, trained))]))


def method_names(config: Names, facts: Names) -> str:
    """How the workers exchanged gradients or models.

    Example:
      >>> config = {"mixer": "choco(gamma=0.5)", "topology": "ring", "memory": ""}
      >>> method_names(config | {"compressor": "sign"}, {})
      'choco(gamma=0.5) on ring · sign'
    """
    keys = ("compressor", "memory", "exchange")
    names = [mixer_title(config), *(_name(config, key) for key in keys)]
    return str(facts.get("method") or " · ".join(filter(None, names)))


def mixer_title(config: Names) -> str:
    """The mixer and its topology; empty where all workers share one model.

    Example:
      >>> mixer_title({"mixer": "d_psgd", "topology": "ring"})
      'd_psgd on ring'
      >>> mixer_title({"mixer": "diloco(h=16)", "topology": ""}), mixer_title({})
      ('diloco(h=16)', '')
    """
    mixer, topology = _name(config, "mixer"), _name(config, "topology")
    return f"{mixer} on {topology}" if mixer and topology else mixer


def _name(names: Names, key: str) -> str:
    value = names.get(key)
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value in (None, "", "none") else str(value)


def message_owner(runs: Sequence[Run]) -> str:
    """Whose messages the tables of runs count.

    Example:
      >>> runs = [Run("a", {"workers_per_device": count}, {}, {}) for count in (1, 2)]
      >>> message_owner(runs[:1]), message_owner(runs[1:]), message_owner(runs)
      ('worker', 'device', 'worker or device')
    """
    return _owner(runs, "device", "workers_per_device", "devices_per_node")


def link_owner(runs: Sequence[Run]) -> str:
    """What the bytes leave that tables and curves count, as the runs say.

    Example:
      >>> facts = {"leaver": "host of 2 workers"}
      >>> link_owner([Run("a", {}, facts, {})]), link_owner([Run("a", {}, {}, {})])
      ('host of 2 workers', 'worker')
    """
    told = {str(r.environment.get("leaver") or message_owner([r])) for r in runs}
    return " or ".join(sorted(told))


def model_owner(runs: Sequence[Run]) -> str:
    """Who has a model of its own, where not all share one.

    Example:
      >>> model_owner([Run("a", {"devices_per_node": 2}, {}, {})])
      'node'
    """
    return _owner(runs, "node", "devices_per_node")


def _owner(runs: Sequence[Run], other: str, *keys: str) -> str:
    """A worker, or somebody else where one of the keys is above 1."""
    several = {any((run.config.get(k) or 1) > 1 for k in keys) for run in runs}
    return " or ".join(other if many else "worker" for many in sorted(several))


def workers_text(config: Names) -> str:
    """How many workers a run has, and what else is to be said of their number.

    Example:
      >>> workers_text({"workers": 4}), workers_text({"workers": 1}), workers_text({})
      ('4 workers', '1 worker', '')
      >>> workers_text({"workers": 4, "workers_per_device": 2})
      '4 workers on 2 devices'
      >>> workers_text({"workers": 8, "devices_per_node": 2})
      '4 nodes of 2 devices'
    """
    count = config.get("workers")
    if not count:
        return ""
    nodes, lanes = (
        config.get(key) or 1 for key in ("devices_per_node", "workers_per_device")
    )
    if nodes > 1:
        return f"{_several(count // nodes, 'node')} of {nodes} devices"
    where = f" on {_several(count // lanes, 'device')}" if lanes > 1 else ""
    return _several(count, "worker") + where


def _several(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
