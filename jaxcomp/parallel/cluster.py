"""Which processes run together: joining, leaving, and short texts between them."""

import datetime
import importlib.util
import itertools
import math
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

# jax has no public way to the store that all processes share.
from jax._src import distributed

from jaxcomp.core.errors import RunFailed, UserError


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


AUTO = "auto"
_NUMBERS = ("JAXCOMP_PROCESSES", "JAXCOMP_PROCESS")
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
        place = ("coordinator_address", "num_processes", "process_id")
        others = ("local_device_ids", "cluster_detection_method")
        return dict(zip((*place, *others), self, strict=True))


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
      jaxcomp.UserError: SLURM_NTASKS=4 says that 4 processes were ...
    """
    coordinator = coordinator or variables.get("JAXCOMP_COORDINATOR")
    given = {
        name: variables.get(name, "") if value is None else str(value)
        for name, value in zip(_NUMBERS, (processes, process), strict=True)
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
            f"of this one: --processes and --process, or {' and '.join(_NUMBERS)}"
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
    if launcher and launcher.name == "torchrun":
        return _of_torchrun(variables, launcher)
    if launcher:
        told, devices = launcher.name, local_devices(variables, launcher)
        count, index = (number(variables, n) for n in (launcher.size, launcher.rank))
        missing = [name for name in _OF_SRUN if not variables.get(name)]
        knows = {"Open MPI": variables.get(_OPEN_MPI_4), "Slurm": not missing}
        if knows.get(told):
            return Cluster(None, count, index, devices)
        if told == "Slurm":
            raise UserError(
                f"--coordinator={AUTO}: this is a Slurm job, and {missing[0]} is not "
                "set: start the program with srun"
            )
        if has("mpi4py"):
            return Cluster(None, None, None, devices, "mpi4py")
        raise UserError(
            f"--coordinator={AUTO}: {told} does not say where process 0 runs. pip "
            "install mpi4py, or give --coordinator=HOST:PORT alone, and mpirun says "
            "the rest"
        )
    if variables.get("KUBERNETES_SERVICE_HOST"):
        if has("kubernetes"):
            return Cluster(None, None, None)
        raise UserError(
            f"--coordinator={AUTO}: in Kubernetes jax asks its API: pip install "
            f"'jax[k8s]', or set JAXCOMP_COORDINATOR, {' and '.join(_NUMBERS)}, as "
            "deploy/kubernetes.yaml does"
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


TIME_LIMITS = {
    "join-timeout": 300,  # a queue or an image may hold up other hosts that long
    "peer-timeout": 60,  # without a sign of life, after which a process counts as lost
}
_SILENT_SECONDS = 2.0  # of waiting, before anything is said
_LATER = 3600  # jax ends the process with a dump at its own limit; ours comes first
_LAST_SECONDS = 2.0  # in which the others ask process 0 what was said of its error
_deserted = threading.Event()  # a thread waits for others who did not come in time


class NotJoined(UserError):
    """Not all processes of a run came together in time."""

    exit_code = 1


def join(cluster: Cluster, seconds: float, limit: float) -> int:
    """Connect to the other processes of a run; Ctrl-C ends the waiting.

    From then on jax's heartbeats tell who is lost, and end the others.

    Args:
      cluster: as `find_cluster` returned it.
      seconds: after which this gives up.
      limit: seconds of silence, after which another process counts as lost.

    Returns:
      The number of all processes.

    Raises:
      NotJoined: not all came in time, or nothing listens or can listen at the address.
    """
    failures: list[Exception] = []
    done = threading.Event()

    def connect() -> None:
        try:
            jax.distributed.initialize(
                **cluster.arguments(),
                initialization_timeout=math.ceil(seconds) + _LATER,
                heartbeat_timeout_seconds=math.ceil(limit),
            )
        except Exception as error:
            failures.append(error)
        done.set()

    address = cluster.coordinator or "the address that jax found"
    here = f"{_name(cluster.process, cluster.processes)} on {platform.node()}"
    until = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    _deserted.set()
    # A wait in jax itself hears no signal: the main thread stays outside.
    threading.Thread(target=connect, name="join", daemon=True).start()
    if not done.wait(min(_SILENT_SECONDS, seconds)):
        waiting = f"{here} waits for the others at {address}"
        ends = f"until {until:%H:%M:%S}; Ctrl-C ends it"
        print(f"{waiting}, {ends}", file=sys.stderr, flush=True)
        done.wait(max(0.0, seconds - _SILENT_SECONDS))
    if not done.is_set():
        raise NotJoined(
            f"the other processes did not come to {address} within {seconds:g} s; this "
            f"is {here}. Look at what the others print, and whether they reach that "
            "address; --join-timeout=SECONDS waits longer"
        )
    _deserted.clear()
    if failures:
        message = f"{here} cannot join the others at {address}: {failures[0]}"
        raise NotJoined(message) from failures[0]
    return distributed.global_state.num_processes


def _name(process: int | None, processes: int | None) -> str:
    return "this process" if process is None else f"process {process} of {processes}"


def has_others() -> bool:
    """Whether this process has joined others, or still waits for them in a thread.

    Example:
      >>> has_others()
      False
    """
    return jax.distributed.is_initialized() or _deserted.is_set()


def this_process() -> str:
    """Number and host of this process, once it has joined others."""
    state = distributed.global_state
    return f"{_name(state.process_id, state.num_processes)} on {platform.node()}"


def leave_others(code: int) -> None:
    """End this process after an error if it has others, which fail then themselves.

    Python's own end would wait in jax until all of them have come to theirs.
    """
    if not has_others():
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if distributed.global_state.service is not None:  # which ends with this process
        time.sleep(_LAST_SECONDS)
    os._exit(code)


def time_limit(flag: str, variables: Mapping[str, str]) -> float:
    """The seconds of a flag in `TIME_LIMITS`, or of its variable.

    Example:
      >>> time_limit("join-timeout", {})
      300.0
      >>> time_limit("peer-timeout", {"JAXCOMP_PEER_TIMEOUT": "20"})
      20.0
    """
    name = f"JAXCOMP_{flag.upper().replace('-', '_')}"
    text = variables.get(name, "")
    try:
        seconds = float(text or TIME_LIMITS[flag])
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        message = f"is a number of seconds above 0, not {text!r}"
        raise UserError(f"--{flag} ({name}) {message}")
    return seconds


_START_SECONDS = 60
_numbers = itertools.count()


class Silent(RunFailed):
    """Another process did not come to the same place of the program in time."""

    def __init__(self, message: str, texts: dict[int, str]) -> None:
        super().__init__(message)
        self.texts = texts  # of those who came


def texts_of_all(text: str, seconds: float) -> dict[int, str]:
    """The texts of all processes by their index; empty ones are left out.

    All processes call it in the same order.

    Args:
      text: of this process.
      seconds: for all others to come here.

    Raises:
      Silent: one has not come; the message of the coordinator names it.

    Example:
      >>> texts_of_all("mine", 1)
      {0: 'mine'}
    """
    state = distributed.global_state
    client = state.client
    if client is None:
        return {0: text} if text else {}
    name = f"jaxcomp/{next(_numbers)}"
    if text:
        client.key_value_set(f"{name}/{state.process_id}", text)

    def found() -> dict[int, str]:
        texts = sorted(client.key_value_dir_get(f"{name}/"))
        return {int(key.rsplit("/", 1)[1]): value for key, value in texts}

    try:
        client.wait_at_barrier(name, round(seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise Silent(
            f"{this_process()} has lost others: {str(error).splitlines()[0]}",
            found(),
        ) from None
    return found()


def check_same(facts: dict[str, str], seconds: float = _START_SECONDS) -> None:
    """Refuse a run of processes that are not about to do the same.

    Args:
      facts: by name, such as versions; the same names on all processes.
      seconds: for all others to come here.

    Raises:
      UserError: names the fact, two processes and their hosts; on all of them.

    Example:
      >>> check_same({"jax": "1.0"})
    """
    host = platform.node()
    for name, mine in facts.items():
        texts = texts_of_all(f"{host}\n{mine}", seconds)
        split = {i: text.split("\n", 1) for i, text in sorted(texts.items())}
        first = split[0]
        for index, (other_host, text) in split.items():
            if text != first[1]:
                a, b = _apart(first[1], text)
                raise UserError(
                    f"the processes do not run the same: {name} is {a} in process 0 on "
                    f"{first[0]}, and {b} in process {index} on {other_host}"
                )


def _apart(a: str, b: str) -> tuple[str, str]:
    """Two texts, or their first lines that differ if they have several.

    Example:
      >>> _apart("x\\ny=1", "x\\ny=2")
      ('y=1', 'y=2')
    """
    lines = itertools.zip_longest(a.split("\n"), b.split("\n"), fillvalue="nothing")
    return next((x.strip(" ,"), y.strip(" ,")) for x, y in lines if x != y)
