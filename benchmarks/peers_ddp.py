"""PyTorch's DistributedDataParallel with its communication hooks: a peer of exchanges.

N processes over gloo, one thread each, on this host or on one each, hold parameters of
given shapes. Between turns they sleep on their standard input. `start` runs on the side
of the benchmark and needs no torch; the processes run this file, in any interpreter
with it.

What is timed, from a barrier to the return of `backward`: a backward pass whose
gradients are given and cost a copy, with what DDP does after it; and the same without
communication (`no_sync`). The difference is DDP's part: filling its buckets, the hook,
the collectives, decoding, and error feedback where the hook has it.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from benchmarks import crew as crews

WARM_UP = 5  # steps; PowerSGD's first two go dense by its own rule, and set up state
START = 2  # step from which on PowerSGD compresses; it refuses less


class Peer(NamedTuple):
    """A running crew of processes."""

    run: Callable[[], tuple[float, float]]  # seconds of a step, of one without DDP
    close: Callable[[], None]


def has_torch(python: str) -> bool:
    """Whether an interpreter has PyTorch with gloo.

    Raises:
      SystemExit: it cannot be started; says why.
    """
    code = "import torch.distributed as d; assert d.is_gloo_available()"
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError as error:
        message = f"--python={python} cannot be started: {error.strerror}"
        raise SystemExit(message) from None


class Places(NamedTuple):
    """Where the processes run: by default all on this host."""

    inside: Callable[[int, Sequence[str]], list[str]] = lambda rank, command: [*command]
    address: str = "127.0.0.1"  # of the first
    interface: str = "lo"


def start(
    hook: str,
    shapes: Sequence[tuple[int, ...]],
    workers: int,
    python: str,
    places: Places = Places(),  # noqa: B008  a constant
) -> Peer:
    """Start a crew and wait until it has warmed up.

    Args:
      hook: a name in `HOOKS`.
      shapes: of the parameters as PyTorch lays them out, outputs first.
      workers: number of processes.
      python: their interpreter.
      places: their hosts.

    Raises:
      RuntimeError: a process ended; the message has what it wrote.
    """
    if hook not in HOOKS:
        raise ValueError(f"unknown hook {hook!r}; valid: {', '.join(HOOKS)}")
    # Each process would take all cores for itself, and the crew has to share them.
    limits = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": places.interface}
    command = [python, "-m", "benchmarks.peers_ddp"]
    crew = crews.start(
        f"a peer with {hook}",
        [places.inside(rank, command) for rank in range(workers)],
        os.environ | limits,
    )

    def run() -> tuple[float, float]:
        whole, bare = zip(*crew.ask(["go"] * workers), strict=True)
        return max(whole), max(bare)

    task = {"hook": hook, "shapes": list(shapes), "size": workers}
    task |= {"port": _free_port(), "address": places.address}
    crew.ask([task | {"rank": rank} for rank in range(workers)])
    return Peer(run, crew.close)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- In the processes -----------------------------------------------------------------


def serve() -> None:
    """Read a task, warm up, then do one turn for each line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    task = json.loads(sys.stdin.readline())
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{task['address']}:{task['port']}",
        rank=task["rank"],
        world_size=task["size"],
        timeout=timedelta(minutes=10),
    )
    model = _model(torch, task["shapes"], task["rank"])
    ddp = _wrapped(torch, model, HOOKS[task["hook"]])

    def step() -> float:
        ddp.zero_grad(set_to_none=True)
        dist.barrier()
        began = time.perf_counter()
        ddp().backward()
        return time.perf_counter() - began

    def turn() -> tuple[float, float]:
        with ddp.no_sync():
            bare = step()
        return step(), bare

    def say(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    for _ in range(WARM_UP):
        step()
    turn()
    say("ready")
    for _ in sys.stdin:
        say(turn())
    dist.destroy_process_group()


def _model(torch: Any, shapes: list[list[int]], rank: int) -> Any:
    """Parameters, and a loss whose gradients are drawn once and handed out."""
    generator = torch.Generator().manual_seed(rank)
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *parameters: Any) -> Any:
            return torch.zeros(())

        @staticmethod
        def backward(ctx: Any, *output: Any) -> Any:
            return tuple(gradients)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            zeros = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
            self.tensors = torch.nn.ParameterList(zeros)

        def forward(self) -> Any:
            return Given.apply(*self.tensors)

    return Model()


class Hook(NamedTuple):
    """A communication hook and the size of the buckets it is given."""

    rank: int | None = None  # of PowerSGD
    fp16: bool = False
    batched: bool = False  # PowerSGD multiplies tensors of one shape together
    bucket_mb: int | None = None  # None is DDP's default


# With several buckets the all-reduces of PowerSGD's hook, started by callbacks, meet in
# a different order in different processes, which gloo answers by an error.
_ONE_BUCKET = 100_000

HOOKS = {
    "all-reduce": Hook(),
    "fp16": Hook(fp16=True),
    "PowerSGD(rank=2)": Hook(rank=2, bucket_mb=_ONE_BUCKET),
    "PowerSGD(rank=4)": Hook(rank=4, bucket_mb=_ONE_BUCKET),
    "PowerSGD(rank=2), batched": Hook(rank=2, batched=True, bucket_mb=_ONE_BUCKET),
    "PowerSGD(rank=4), batched": Hook(rank=4, batched=True, bucket_mb=_ONE_BUCKET),
}


def _wrapped(torch: Any, model: Any, hook: Hook) -> Any:
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=hook.bucket_mb, gradient_as_bucket_view=True
    )
    folder = "torch.distributed.algorithms.ddp_comm_hooks"
    if hook.fp16:
        hooks: Any = importlib.import_module(f"{folder}.default_hooks")
        ddp.register_comm_hook(None, hooks.fp16_compress_hook)
    if hook.rank is not None:
        power: Any = importlib.import_module(f"{folder}.powerSGD_hook")
        state = power.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=hook.rank,
            start_powerSGD_iter=START,
            use_error_feedback=True,
            warm_start=True,
            batch_tensors_with_same_shape=hook.batched,
        )
        ddp.register_comm_hook(state, power.powerSGD_hook)
    return ddp


if __name__ == "__main__":
    serve()
