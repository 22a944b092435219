"""What a run is called: its method, its workers and its task."""

from typing import Any


def mixer_title(config: dict[str, Any]) -> str:
    """Names the mixer and the topology of a run.

    Args:
        config: Config of the run.

    Returns:
        The name, empty where all workers have one common model.

    >>> mixer_title({"mixer": "d_psgd", "topology": "ring"})
    'd_psgd on ring'
    >>> mixer_title({"mixer": "diloco(h=16)", "topology": ""}), mixer_title({})
    ('diloco(h=16)', '')
    """
    mixer, topology = _name(config, "mixer"), _name(config, "topology")
    return f"{mixer} on {topology}" if mixer and topology else mixer


def method_names(config: dict[str, Any], method: Any = None) -> str:
    """Names how the workers exchanged gradients or models.

    Args:
        config: Config of the run.
        method: The method as the run recorded it; default: the names in the config.

    Returns:
        The names, empty if there are none.

    >>> method_names({"mixer": "choco(gamma=0.5)", "topology": "ring",
    ...               "compressor": "sign", "memory": "", "exchange": ""})
    'choco(gamma=0.5) on ring · sign'
    """
    keys = ("compressor", "memory", "exchange")
    names = [mixer_title(config), *(_name(config, key) for key in keys)]
    return str(method or " · ".join(filter(None, names)))


def method_title(config: dict[str, Any], method: Any = None) -> str:
    """Names what was trained and how in one line.

    Args:
        config: Config of the run.
        method: The method as the run recorded it; default: the names in the config.

    Returns:
        The line, with the parts that the config holds.

    >>> method_title({"compressor": "top_k(keep=0.01)", "memory": "error_feedback",
    ...               "exchange": "gather", "workers": 4, "model": "resnet20",
    ...               "dataset": "cifar10"})
    'top_k(keep=0.01) · error_feedback · gather, 4 workers, resnet20 on cifar10'
    """
    task = [_name(config, key) for key in ("model", "dataset")]
    parts = [method_names(config, method), _workers(config)]
    return ", ".join(filter(None, [*parts, " on ".join(filter(None, task))]))


def convex_title(config: dict[str, Any], method: Any = None) -> str:
    """Names what was solved and how in one line.

    Args:
        config: Config of a convex run.
        method: The method as the run recorded it; default: the names in the config.

    Returns:
        The line, with the parts that the config holds.

    >>> convex_title({"problem": "breast_cancer", "workers": 9}, "d_psgd on ring")
    'd_psgd on ring, 9 workers, breast_cancer'
    """
    parts = [method_names(config, method), _workers(config), convex_problem(config)]
    return ", ".join(filter(None, parts))


def convex_problem(config: dict[str, Any]) -> str:
    """Names the problem of a convex run; suboptimality compares within one.

    Args:
        config: Config of the run.

    Returns:
        The problem, with what else sets its difficulty.

    >>> convex_problem({"problem": "digits(pairs=True)", "partition": "sorted"})
    'digits(pairs=True), partition sorted'
    """
    parts = [_name(config, "problem")]
    for key in ("regulariser", "partition"):
        value = _name(config, key)
        parts.append(value and f"{key} {value}")
    return ", ".join(filter(None, parts))


def _workers(config: dict[str, Any]) -> str:
    workers = _name(config, "workers")
    return workers and f"{workers} worker{'' if workers == '1' else 's'}"


def _name(config: dict[str, Any], key: str) -> str:
    value = config.get(key)
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value in (None, "", "none") else str(value)
