"""Which processes a launch starts: their commands and environment variables."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.launch.hosts import Host, remote_command

__all__ = ["Child", "local_plan", "remote_plan"]

# What decides how a process runs, and is therefore passed to other hosts.
_PASSED = ("JAX", "NCCL_", "XLA_", "GLOO_", "PYTHONPATH", "LD_LIBRARY_PATH")


class Child(NamedTuple):
    """A process to start."""

    label: str  # before each of its lines
    command: list[str]
    variables: dict[str, str]  # its whole environment
    over_ssh: bool = False  # it ends when its standard input does


def local_plan(
    command: Sequence[str],
    processes: int,
    devices: int | None,
    port: int,
    variables: Mapping[str, str],
) -> list[Child]:
    """The processes of a run on this machine.

    Args:
      command: words of the program.
      processes: their number.
      devices: of each process; None: one of the GPUs each, or all for one process.
      port: for process 0 to listen on.
      variables: of the environment.
    """
    return [
        Child(
            str(index),
            list(command),
            {
                **variables,
                **_joining(f"127.0.0.1:{port}", processes, index),
                **_devices(variables, devices, processes, index),
            },
        )
        for index in range(processes)
    ]


def remote_plan(
    command: Sequence[str],
    hosts: Sequence[Host],
    devices: int | None,
    port: int,
    variables: Mapping[str, str],
    grace: float,
) -> list[Child]:
    """The processes of a run on several machines, over ssh.

    Args:
      command: words of the program, in the same folder on all of them.
      hosts: process 0 runs on the first.
      devices: of each process, as in `local_plan`.
      port: for process 0 to listen on.
      variables: of the environment; those that decide how jax runs are passed on.
      grace: seconds for a process to end once the connection is closed.
    """
    total = sum(host.processes for host in hosts)
    address = f"{hosts[0].name.rpartition('@')[2]}:{port}"
    passed = {n: v for n, v in variables.items() if n.startswith(_PASSED)}
    children: list[Child] = []
    for host in hosts:
        for local in range(host.processes):
            index = len(children)
            own = {
                **passed,
                **_joining(address, total, index),
                **_devices({}, devices, host.processes, local),
            }
            line = remote_command(command, own, os.getcwd(), grace)
            words = ["ssh", "-o", "BatchMode=yes", host.name, line]
            label = f"{host.name}:{index}"
            children.append(Child(label, words, dict(variables), over_ssh=True))
    return children


def _joining(address: str, processes: int, index: int) -> dict[str, str]:
    return {
        "JAXCOMP_COORDINATOR": address,
        "JAXCOMP_PROCESSES": str(processes),
        "JAXCOMP_PROCESS": str(index),
        "PYTHONUNBUFFERED": "1",  # a line is shown when it is printed
    }


def _devices(
    variables: Mapping[str, str], devices: int | None, processes: int, local: int
) -> dict[str, str]:
    """The variables by which a process finds its share of the devices of its host."""
    if devices is None and processes == 1:
        return {}
    count = devices or 1
    share = range(local * count, (local + 1) * count)
    cpus = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    listed = variables.get("CUDA_VISIBLE_DEVICES")
    seen = [word for word in (listed or "").split(",") if word]
    if seen and len(seen) < processes * count:
        raise UserError(
            f"{processes} processes with {count} devices each need "
            f"{processes * count}, and CUDA_VISIBLE_DEVICES={listed} has {len(seen)}"
        )
    return {**cpus, "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, share))}
