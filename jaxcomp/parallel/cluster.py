"""The processes of a run, as flags and the environment tell them."""

import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.parallel.launchers import Launcher, local_devices, number, started_by

__all__ = ["AUTO", "Cluster", "find_cluster"]

AUTO = "auto"
_LAST_PORT = 65535
_FLAGS = "--coordinator=HOST:PORT, --processes=N and --process=I"
# Without these of srun, jax cannot tell where process 0 runs.
_OF_SRUN = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")
_OPEN_MPI_4 = "OMPI_MCA_orte_hnp_uri"


class Cluster(NamedTuple):
    """Several processes that train together, and which of them this one is."""

    coordinator: str | None  # HOST:PORT of process 0; None: jax finds it
    processes: int | None  # their number; None: jax finds it
    process: int | None  # index of this one; None: jax finds it
    devices: list[int] | None = None  # as `local_devices` returns them
    method: str | None = None  # one of jax's, where it has to be named

    def arguments(self) -> dict[str, Any]:
        """The arguments of `jax.distributed.initialize`.

        Example:
          >>> Cluster("a:1", 2, 0).arguments()["num_processes"]
          2
        """
        return {
            "coordinator_address": self.coordinator,
            "num_processes": self.processes,
            "process_id": self.process,
            "local_device_ids": self.devices,
            "cluster_detection_method": self.method,
        }


def find_cluster(
    variables: Mapping[str, str],
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    has: Callable[[str], Any] = importlib.util.find_spec,
) -> Cluster | None:
    """The cluster that this process belongs to, or None if it trains alone.

    Flags come first, then our variables JAXCOMP_COORDINATOR, JAXCOMP_PROCESSES and
    JAXCOMP_PROCESS. A coordinator without numbers takes them from the launcher:
    torchrun, Open MPI, another MPI, or Slurm. torchrun also says where process 0 runs.

    Args:
      variables: of the environment.
      coordinator: "HOST:PORT" of process 0, or "auto": jax finds it.
      processes: their number.
      process: index of this one.
      has: whether a package is installed.

    Raises:
      UserError: something is missing, or several processes would each train alone.

    Example:
      >>> find_cluster({"MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "0",
      ...               "WORLD_SIZE": "2"}).coordinator
      'a:1'
      >>> find_cluster({"SLURM_NTASKS": "4"})
      Traceback (most recent call last):
      jaxcomp.errors.UserError: SLURM_NTASKS=4 says that 4 processes were ...
    """
    coordinator = coordinator or variables.get("JAXCOMP_COORDINATOR")
    given = {
        "JAXCOMP_PROCESSES": variables.get("JAXCOMP_PROCESSES", "")
        if processes is None
        else str(processes),
        "JAXCOMP_PROCESS": variables.get("JAXCOMP_PROCESS", "")
        if process is None
        else str(process),
    }
    launcher = started_by(variables)
    if not coordinator:
        for name, value in given.items():
            if value:
                flag = name.removeprefix("JAXCOMP_").lower()
                message = f"--{flag} ({name}) is set without a coordinator: give"
                raise UserError(f"{message} {_FLAGS}")
        return _of_torchrun(variables, launcher) if launcher else None
    if coordinator == AUTO:
        return _found_by_jax(variables, launcher, has)
    _check_address(coordinator)
    if launcher and not any(given.values()):
        names = (launcher.size, launcher.rank)
        given = {name: variables.get(name, "") for name in names}
    try:
        count, index = (int(value) for value in given.values())
    except ValueError:
        raise UserError(
            f"coordinator {coordinator} needs the number of processes and the index "
            "of this one: --processes and --process, or JAXCOMP_PROCESSES and "
            "JAXCOMP_PROCESS"
        ) from None
    _check_index(count, index)
    return Cluster(coordinator, count, index, local_devices(variables, launcher))


def _of_torchrun(variables: Mapping[str, str], launcher: Launcher) -> Cluster:
    """The cluster of torchrun's variables; refuses those of other launchers."""
    host, port = (variables.get(f"MASTER_{name}", "") for name in ("ADDR", "PORT"))
    count, index = number(variables, "WORLD_SIZE"), number(variables, "RANK")
    if not (launcher.name == "torchrun" and host and port.isdigit()) or index is None:
        size = variables[launcher.size]
        raise UserError(
            f"{launcher.size}={size} says that {size} processes were started together, "
            "and without a coordinator each would train alone. To train as one, give "
            f"--coordinator={AUTO} or {_FLAGS}; for one process alone, unset "
            f"{launcher.size}"
        )
    _check_index(count or 0, index)
    # The agents of torchrun keep MASTER_PORT for themselves.
    is_taken = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = f"{host}:{int(port) + is_taken}"
    _check_address(address)
    return Cluster(address, count, index, local_devices(variables, launcher))


def _found_by_jax(
    variables: Mapping[str, str],
    launcher: Launcher | None,
    has: Callable[[str], Any],
) -> Cluster | None:
    """The cluster of `--coordinator=auto`; its address comes from jax's detection."""
    told = launcher.name if launcher else ""
    devices = local_devices(variables, launcher)
    if launcher and told != "torchrun":
        count, index = (number(variables, n) for n in (launcher.size, launcher.rank))
        knows = {
            "Open MPI": variables.get(_OPEN_MPI_4),
            "Slurm": all(variables.get(name) for name in _OF_SRUN),
        }
        if knows.get(told):
            return Cluster(None, count, index, devices)
        if told == "Slurm":
            missing = next(name for name in _OF_SRUN if not variables.get(name))
            raise UserError(
                f"--coordinator={AUTO}: this is a Slurm job, and {missing} is not set: "
                "start the program with srun"
            )
        if has("mpi4py"):
            return Cluster(None, None, None, devices, "mpi4py")
        raise UserError(
            f"--coordinator={AUTO}: {told} does not say where process 0 runs. pip "
            "install mpi4py, or give --coordinator=HOST:PORT alone, and mpirun says "
            "the rest"
        )
    if told:
        return _of_torchrun(variables, launcher) if launcher else None
    if variables.get("KUBERNETES_SERVICE_HOST"):
        if has("kubernetes"):
            return Cluster(None, None, None)
        raise UserError(
            f"--coordinator={AUTO}: in Kubernetes jax asks its API: pip install "
            "'jax[k8s]', or set JAXCOMP_COORDINATOR, JAXCOMP_PROCESSES and "
            "JAXCOMP_PROCESS, as deploy/kubernetes.yaml does"
        )
    if variables.get("TPU_WORKER_HOSTNAMES"):
        return Cluster(None, None, None)
    sizes = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NODELIST")
    if any(variables.get(name) for name in sizes):
        return None  # a job of one process
    raise UserError(
        f"--coordinator={AUTO} finds neither Open MPI, Slurm, Kubernetes nor another "
        f"MPI around this process: give {_FLAGS}"
    )


def _check_address(text: str) -> None:
    found = re.fullmatch(r".+:(\d{1,5})", text)
    if not found or not 0 < int(found[1]) <= _LAST_PORT:
        form = f"HOST:PORT with a port of 1 to {_LAST_PORT}"
        raise UserError(f"a coordinator is {AUTO} or {form}, not {text!r}")


def _check_index(count: int, index: int) -> None:
    if count < 1:
        raise UserError(f"processes are 1 or more, not {count}")
    if not 0 <= index < count:
        raise UserError(f"process {index} is not one of 0 to {count - 1}")
