"""What a run is called: its method, its number of workers and its task.

A run records the names of what it was built from in environment.json: `method`, and
`model` and `data` as its task calls them. Where a folder lacks these, because an older
version wrote it, they are taken from the config.
"""

from typing import Any

from jaxcomp.report.whose import workers_text

__all__ = ["convex_problem", "convex_title", "method_names", "mixer_title", "run_title"]

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
    parts = [method_names(config, facts), workers_text(config), _task(config, facts)]
    return ", ".join(filter(None, parts))


def convex_title(config: Names, facts: Names) -> str:
    """One line that says which problem was solved, and how.

    Args:
      config: of a convex run.
      facts: its environment.

    Example:
      >>> config = {"problem": "breast_cancer", "workers": 9}
      >>> convex_title(config, {"method": "d_psgd on ring"})
      'd_psgd on ring, 9 workers, breast_cancer'
    """
    parts = [method_names(config, facts), workers_text(config), convex_problem(config)]
    return ", ".join(filter(None, parts))


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


def convex_problem(config: Names) -> str:
    """The problem of a convex run, with what else decides how hard it is.

    Suboptimality can be compared between runs of one such problem.

    Example:
      >>> convex_problem({"problem": "digits(pairs=True)", "partition": "sorted"})
      'digits(pairs=True), partition sorted'
    """
    parts = [_name(config, "problem")]
    for key in ("regulariser", "partition"):
        value = _name(config, key)
        parts.append(value and f"{key} {value}")
    return ", ".join(filter(None, parts))


def _task(config: Names, facts: Names) -> str:
    task = _name(config, "task")
    names = [_name(facts, "model"), _name(facts, "data")]
    if not any(names):
        if task not in ("", "classification"):
            return task  # the config's model and dataset may not be those of the task
        names = [_name(config, "model"), _name(config, "dataset")]
    return " on ".join(filter(None, names))


def _name(names: Names, key: str) -> str:
    value = names.get(key)
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value in (None, "", "none") else str(value)
