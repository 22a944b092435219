"""What launchers tell each process that they start, and which devices it may use."""

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["LAUNCHERS", "Launcher", "local_devices", "started_by", "tasks_on_node"]


class Launcher(NamedTuple):
    """The environment variables of a launcher."""

    name: str
    size: str  # number of processes
    rank: str  # index of this one
    local_size: str  # number of processes on this host
    local_rank: str  # index of this one on its host


# mpirun and torchrun may run inside a Slurm job, and what they say is more precise.
LAUNCHERS = (
    Launcher("torchrun", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher("MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    Launcher("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "", "SLURM_LOCALID"),
)


def started_by(variables: Mapping[str, str]) -> Launcher | None:
    """The launcher that has started several processes, of which this is one.

    Example:
      >>> launcher = started_by({"SLURM_NTASKS": "4"})
      >>> launcher and launcher.name
      'Slurm'
    """
    for launcher in LAUNCHERS:
        if (number(variables, launcher.size) or 1) > 1:
            return launcher
    return None


def local_devices(
    variables: Mapping[str, str], launcher: Launcher | None
) -> list[int] | None:
    """Which GPUs a process takes, of those that it sees.

    Processes of one host share its GPUs equally. If the launcher has already given each
    process GPUs of its own, a process takes all that it sees.

    Args:
      variables: of the environment.
      launcher: of this process.

    Returns:
      Their indices; no index means all, None leaves the choice to jax.
    """
    if launcher is None or variables.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    rank = number(variables, launcher.local_rank)
    size = number(variables, launcher.local_size) or tasks_on_node(variables)
    if rank is None or not size:
        return None
    listed = variables.get("CUDA_VISIBLE_DEVICES")
    seen = None if listed is None else len([i for i in listed.split(",") if i.strip()])
    on_node = number(variables, "SLURM_GPUS_ON_NODE") or seen
    is_bound = "SLURM_GPUS_PER_TASK" in variables or (
        seen is not None and on_node is not None and (seen < on_node or seen < size)
    )
    if size == 1 or is_bound:
        return []
    share = max(1, (seen or on_node or size) // size)
    return list(range(rank * share, (rank + 1) * share))


def tasks_on_node(variables: Mapping[str, str]) -> int | None:
    """The number of processes that Slurm has started on this host.

    Example:
      >>> tasks_on_node({"SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"})
      1
    """
    names = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    text = next((variables[name] for name in names if variables.get(name)), "")
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = number(variables, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else None


def number(variables: Mapping[str, str], name: str) -> int | None:
    """A variable as a whole number; None if it is not one."""
    text = variables.get(name, "")
    return int(text) if text.isdigit() else None
