"""Whose bytes and models a page shows: usually those of workers.

Several workers may share a device, which then sends for all of them. Or several devices
are one node of gossip, with one model.
"""

from collections.abc import Sequence
from typing import Any

from jaxcomp.report.run_folder import Run

__all__ = ["holder", "leaver", "sender", "workers_text"]


def sender(runs: Sequence[Run]) -> str:
    """Whose bytes the tables of runs count.

    Example:
      >>> runs = [Run("a", {"workers_per_device": count}, {}, {}) for count in (1, 2)]
      >>> sender(runs[:1]), sender(runs[1:]), sender(runs)
      ('worker', 'device', 'worker or device')
    """
    keys = ("workers_per_device", "devices_per_node")
    shared = {any(_count(run.config, key) > 1 for key in keys) for run in runs}
    names = {False: "worker", True: "device"}
    return " or ".join(names[kind] for kind in sorted(shared))


def leaver(runs: Sequence[Run]) -> str:
    """What the bytes leave that tables and curves count, as the runs say.

    Example:
      >>> facts = {"leaver": "host of 2 workers"}
      >>> leaver([Run("a", {}, facts, {})]), leaver([Run("a", {}, {}, {})])
      ('host of 2 workers', 'worker')
    """
    names = {str(run.environment.get("leaver") or sender([run])) for run in runs}
    return " or ".join(sorted(names))


def holder(runs: Sequence[Run]) -> str:
    """Who has a model of its own, where not all share one.

    Example:
      >>> holder([Run("a", {"devices_per_node": 2}, {}, {})])
      'node'
    """
    several = {_count(run.config, "devices_per_node") > 1 for run in runs}
    names = {False: "worker", True: "node"}
    return " or ".join(names[kind] for kind in sorted(several))


def workers_text(config: dict[str, Any]) -> str:
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
        _count(config, key) for key in ("devices_per_node", "workers_per_device")
    )
    if nodes > 1:
        return f"{_several(count // nodes, 'node')} of {nodes} devices"
    where = f" on {_several(count // lanes, 'device')}" if lanes > 1 else ""
    return _several(count, "worker") + where


def _count(config: dict[str, Any], key: str) -> int:
    return config.get(key) or 1


def _several(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
