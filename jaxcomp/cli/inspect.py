"""`jaxcomp inspect`: what a training step would cost on accelerators elsewhere."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import jax

from jaxcomp.cli.config import config_of
from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.units import bytes_text, seconds_text, times_text
from jaxcomp.training.programs import Inspection, inspect
from jaxcomp.wire.targets import Program, overlap

_LAUNCH_MICROSECONDS = (2, 4)


def add_parser(subparsers: Any) -> None:
    """Add the command `inspect`; as `run_command.add_command`."""
    parser = add_command(subparsers, "inspect", _run)
    add = parser.add_argument
    add(
        "--config", required=True, help="file[,part,...]; --config.KEY=VALUE sets a key"
    )
    add("--target", required=True, help="a100, h100, v5e, ...")
    add("--hosts", type=int, default=1, help="their number, 1 by default")
    add("--devices", type=int, default=8, help="of each host, 8 by default")
    add("--step", type=int, help="of the run, the last by default")
    parser.set_defaults(takes_config_keys=True)


def _run(args: argparse.Namespace) -> int:
    r"""Compile the training step of a config for accelerators that are not here, and
    show its messages, kernel launches, memory and order.

    example:
      jaxcomp inspect --config=configs/default.py --target=a100
      jaxcomp inspect --config=configs/default.py --target=a100 --hosts=2 --devices=8 \
          --config.batch_size=256 --config.scope=whole_tree

    Each device is a worker. Nothing runs and no accelerator is needed: XLA compiles the
    step for the target, and the figures are read from the program. What it needs beside
    jaxcomp is XLA's compiler for the target; without it the command says what to
    install.
    """
    # jax would look for an accelerator here, and what it finds is not what is asked.
    jax.config.update("jax_platforms", "cpu")
    config = config_of(args)
    found = inspect(config, args.target, args.hosts, args.devices, args.step)
    print(_heading(found), "", aligned(_rows(found)), sep="\n")
    return 0


def _heading(found: Inspection) -> str:
    setup, workers = found.plan, found.target.workers
    share = setup.segments.batch_at(found.step - 1) // workers.size
    return (
        f"{setup.task.model} on {setup.task.data}\n"
        f"method: {setup.method.name}\n"
        f"target: {found.target}, {workers.mapper}, a batch of {share} each\n"
        f"step {found.step} of {setup.total_steps}, {found.stage}; compiled in "
        f"{seconds_text(found.seconds)}"
    )


def _rows(found: Inspection) -> Iterator[tuple[str, str]]:
    program, sent, dense = found.program, found.sent, bytes_text(found.sent.dense)
    yield "messages of a worker", f"{bytes_text(sent.wire)} of a gradient of {dense}"
    yield from _messages(program)
    left, exact = bytes_text(sent.left), bytes_text(sent.exact)
    yield f"leaves a {sent.leaver}", f"{left} as rings, and {exact} with exact"
    yield "fewer over the run", times_text(found.run.fewer)
    low, high = (program.launches * us / 1000 for us in _LAUNCH_MICROSECONDS)
    launches = f"{program.launches:,}"
    if found.target.name[0] != "v":
        launches += f", which take the host about {low:.2g} to {high:.2g} ms"
    yield "launches", launches
    loops = Counter(program.open_loops)
    names = f": {', '.join(list(loops)[:3])}" if loops else ""
    more = ", ..." if len(loops) > 3 else ""
    yield "loops of unknown length", f"{len(program.open_loops)}{names}{more}"
    if program.memory is not None:
        temporary = program.memory.temporary
        yield (
            "temporary memory",
            f"{bytes_text(temporary)}, {temporary / sent.dense:.2g} gradients",
        )
        yield "memory in all", bytes_text(program.memory.peak)
    behind, products = overlap(program.order)
    yield (
        "order",
        f"{behind} of {products} products of the backward pass start after the first "
        "message",
    )


def _messages(program: Program) -> Iterator[tuple[str, str]]:
    of_kind = defaultdict(list)
    for collective in program.collectives:
        of_kind[collective.kind, collective.workers].append(collective)
    for (kind, workers), found in of_kind.items():
        times = sum(collective.times for collective in found)
        nbytes = sum(collective.times * collective.nbytes for collective in found)
        text = f"{times} between {workers} workers, {bytes_text(nbytes)}"
        yield f"  {kind}", text
