"""The folder of a run: its config, its environment, and what may differ on resume."""

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxcomp._version import __version__
from jaxcomp.core.errors import UserError
from jaxcomp.core.files import write_atomically
from jaxcomp.runs.keys import KEYS, changeable


class RunError(UserError):
    """A run folder that cannot be used as asked; the message says what to do."""


_DECIDING = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "XLA_FLAGS",
)


def describe() -> dict[str, Any]:
    """Versions, devices and revision."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    return {
        "versions": {
            "python": platform.python_version(),
            "jaxcomp": __version__,
            **versions,
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "devices": [str(d) for d in jax.devices()],
        "processes": jax.process_count(),
        # What decides which devices there are, and how programs are compiled for them.
        "variables": {name: os.environ.get(name, "") for name in _DECIDING},
        "git_revision": _git_revision(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


def _git_revision() -> str | None:
    """Revision of the source tree the package runs from; None outside a checkout."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


# What a run leaves, beside config.json and environment.json.
_RESULTS = ("checkpoints", "metrics.csv", "steps.csv")
_OTHERS = ("environment.json", "report.html")
# Where people let the output of a run go, before it starts.
_OUTPUT = (".err", ".log", ".out", ".txt")


def check_workdir(workdir: str | os.PathLike[str], *, make: bool = False) -> Path:
    """The path of a run folder; refuses a file, and a folder with other things.

    Args:
      workdir: as it was given.
      make: the folder, if it is not there yet.

    Example:
      >>> check_workdir("")
      Traceback (most recent call last):
      jaxcomp.runs.folder.RunError: --workdir is empty: name a folder, such as ...
    """
    if not os.fspath(workdir).strip():
        raise RunError("--workdir is empty: name a folder, such as runs/first")
    folder = Path(workdir)
    for part in (folder, *folder.parents):
        if os.path.lexists(part) and not os.path.isdir(part):
            what = "a file" if os.path.exists(part) else "a link that leads nowhere"
            message = f"{part} is {what}, and a run needs a folder: take another name"
            raise RunError(f"--workdir={folder}: {message}")
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        is_ours = not folder.exists() or (folder / "config.json").exists()
        names = set() if is_ours else {path.name for path in folder.iterdir()}
    except OSError as error:
        message = f"cannot be used: {error.strerror}: take another name"
        raise RunError(f"--workdir={folder} {message}") from error
    names = {name for name in names if not name.startswith(".")}
    lost = sorted(names & set(_RESULTS))
    if lost:
        message = f"{folder} holds {lost[0]} of a run, but not its config.json"
        raise RunError(f"{message}. Put that back, or take another --workdir")
    others = sorted(n for n in names - {*_OTHERS} if Path(n).suffix not in _OUTPUT)
    if others:
        message = f"{folder} holds other things than a run, such as {others[0]}"
        raise RunError(f"{message}: take a --workdir of its own, such as runs/first")
    return folder


def open_folder(folder: Path, config: dict[str, Any], facts: dict[str, Any]) -> None:
    """Fill a new run folder, or check that it belongs to this config.

    Args:
      folder: that exists, as `check_workdir` returned it.
      config: plain values.
      facts: what else environment.json says, such as the method in full.
    """
    path = folder / "config.json"
    if path.exists():
        check_config(folder, config)
    else:
        environment = json.dumps({**describe(), **facts}, indent=1)
        write_atomically(folder / "environment.json", environment)
    write_atomically(path, json.dumps(config, indent=1))


def check_config(
    folder: Path, config: dict[str, Any], *, elastic: bool = False
) -> None:
    """Refuse to take the run in a folder for one of another config.

    A key that the folder does not know, because it was added later, has the value that
    says what runs did before; by default it counts as empty.

    Args:
      folder: of a run.
      config: plain values.
      elastic: the number of workers may differ, whatever the config says.

    Raises:
      RunError: there is no run in the folder, or one of another config; says what
        differs.
    """
    path = folder / "config.json"
    if not path.exists():
        raise RunError(f"{folder} holds no run: no config.json. Train first")
    old = read_json(path)
    if not old:
        message = f"{path} is empty or damaged: put it back, or take another --workdir"
        raise RunError(message)
    before = {name: key.before for name, key in KEYS.items() if key.before}
    old, config = {**before, **old}, {**before, **config}
    may_differ = changeable(elastic=elastic or bool(config.get("elastic")))
    different = [
        key
        for key in sorted((old.keys() | config.keys()) - may_differ.keys())
        # As text too: a NaN is not equal to itself.
        if old.get(key) != config.get(key)
        and json.dumps(old.get(key)) != json.dumps(config.get(key))
        and (old.get(key) or config.get(key))
    ]
    if different:
        lines = [
            f"  {key}: the folder has {_shown(old, key)}, you ask for "
            f"{_shown(config, key)}"
            for key in different
        ]
        first = f"{folder} holds a run with another config:"
        way = "Use another --workdir, or the same config to go on with that run."
        if "workers" in different and "elastic" in config:
            way += (
                "\nTo go on with another number of workers, add --config.elastic=True."
            )
        raise RunError("\n".join([first, *lines, way]))


def read_json(path: Path) -> dict[str, Any]:
    """Names and values of a JSON file, none where it is missing or damaged.

    Example:
      >>> read_json(Path("nowhere.json"))
      {}
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def note_fact(folder: Path, name: str, value: Any) -> None:
    """Write a fact that became known later into environment.json.

    Args:
      folder: of the run.
      name: of the fact.
      value: a plain value; None removes the fact.
    """
    path = folder / "environment.json"
    facts = read_json(path)
    changed = {**facts, name: value}
    if value is None:
        del changed[name]
    if changed != facts:
        write_atomically(path, json.dumps(changed, indent=1))


def _shown(config: dict[str, Any], key: str) -> str:
    return repr(config[key]) if key in config else "nothing"
