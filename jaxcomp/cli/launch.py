"""`jaxcomp launch`: start the processes of a run, here or on several hosts."""

import argparse
import os
import random
import sys
from typing import Any

from jaxcomp.cli.run_command import add_command
from jaxcomp.core.errors import UserError


def add_parser(subparsers: Any) -> None:
    """Add the command `launch`; as `run_command.add_command`."""
    parser = add_command(
        subparsers,
        "launch",
        _run,
        usage="jaxcomp launch [options] -- PROGRAM ...",
    )
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group(required=True).add_argument
    number = "their number on this machine"
    where("-n", "--processes", type=int, metavar="N", help=number)
    where("--hosts", help="NAME:PROCESSES,... that ssh reaches without a password")
    add("--devices-per-process", type=int, metavar="D", help="by default one GPU each")
    add("--port", type=int, help="of process 0; by default a free one")
    grace = "between Ctrl-C and SIGKILL, 60 by default"
    add("--grace", type=float, default=60.0, metavar="SECONDS", help=grace)
    again = "start all again so many times after failures"
    add("--restarts", type=int, default=0, metavar="N", help=again)
    stuck = "without progress of a process, which then counts as failed"
    add("--stuck-after", type=float, default=0.0, metavar="SECONDS", help=stuck)
    add("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _run(args: argparse.Namespace) -> int:
    r"""Start a program several times, as the processes of one run.

    examples:
      jaxcomp launch -n 2 --devices-per-process 2 -- \
          jaxcomp train --config=default --workdir=runs/two
      jaxcomp launch -n 2 --devices-per-process 2 -- \
          python train.py --config=configs/default.py --workdir=runs/two
      jaxcomp launch --hosts=server0:8,server1:8 -- \
          python train.py --config=configs/default.py --workdir=/shared/runs/16

    The first exit code that is not 0 is that of the launch, and ends all processes.
    Ctrl-C lets all of them save and end; a second Ctrl-C kills them. Over ssh, every
    host needs the program under the same path, and its folders where all hosts see
    them.
    """
    from jaxcomp.cli import supervise

    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    _check(args, command)
    hosts = [supervise.Host(supervise.HERE, args.processes)]
    if args.hosts is not None:
        hosts = supervise.parse_hosts(args.hosts)

    def plan() -> list[supervise.Child]:
        # On other hosts below the ports that systems give to connections.
        found = random.randint(20000, 29999) if hosts[0].name else supervise.free_port()
        places = hosts, args.devices_per_process, args.port or found
        return supervise.make_children(command, *places, os.environ, args.grace)

    ended = supervise.supervise(plan, args.grace, args.restarts, args.stuck_after)
    if ended.code and ended.code != 141:
        print(f"jaxcomp launch: {ended.why}", file=sys.stderr)
    return ended.code


def _check(args: argparse.Namespace, command: list[str]) -> None:
    """Refuse flags that are missing or have bad values."""
    if not command:
        raise UserError("name the program: jaxcomp launch -n 2 -- python train.py ...")
    least = {
        "-n": (args.processes, 1),
        "--devices-per-process": (args.devices_per_process, 1),
        "--port": (args.port, 1),
        "--grace": (args.grace, 0),
        "--restarts": (args.restarts, 0),
        "--stuck-after": (args.stuck_after, 0),
    }
    for name, (value, most) in least.items():
        if value is not None and not value >= most:
            raise UserError(f"{name} is at least {most}, not {value:g}")
    if args.port and args.port > 65535:
        raise UserError(f"--port is at most 65535, not {args.port}")
    if args.stuck_after and args.processes is None:
        raise UserError("--stuck-after looks at processes of this machine: take -n")
