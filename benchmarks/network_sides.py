"""What benchmarks/network.py runs on its hosts: exchanges, training steps, peers."""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import crew, namespaces, peers_ddp, trees
from jaxcomp.wire import Collective

PATIENCE = 600  # seconds to compile
_PORT = 9010


class Case(NamedTuple):
    """An exchange of ours, or a hook of PyTorch's DDP, and how it is called here."""

    title: str
    exchange: str = "gather"
    compressor: str = "none"
    memory: str = "error_feedback"
    scope: str = "whole_tree"
    hook: str = ""  # a name in `peers_ddp.HOOKS`


_LIGHT = "top_k(keep=0.001)"
CASES = (
    Case("exact", "exact", memory="none"),
    Case("power_sgd(rank=2)", "power_sgd(rank=2)", scope="per_leaf"),
    Case(f"{_LIGHT}, whole_tree", compressor=_LIGHT),
    Case(f"{_LIGHT}, per_leaf", compressor=_LIGHT, scope="per_leaf"),
    Case(f"{_LIGHT} | qsgd(levels=127)", compressor=f"{_LIGHT} | qsgd(levels=127)"),
    Case(f"dgc: {_LIGHT}", compressor=_LIGHT, memory="dgc"),
    Case("sign", compressor="sign"),
    Case(
        "two_phase(qsgd(levels=7, norm='max'))",
        "two_phase",
        "qsgd(levels=7, norm='max')",
        memory="none",
    ),
    Case("DDP: no hook", hook="all-reduce"),
    Case("DDP: fp16", hook="fp16"),
    Case("DDP: PowerSGD(rank=2)", hook="PowerSGD(rank=2)"),
    Case("DDP: PowerSGD(rank=2), batched", hook="PowerSGD(rank=2), batched"),
)


class Side(NamedTuple):
    """One method that runs on all hosts."""

    run: Callable[[int, float], list[float]]  # (times, seconds to wait) -> seconds each
    elements: int  # of the gradient
    collectives: list[Collective] | None  # None of a peer


def chosen(args: argparse.Namespace) -> list[Case]:
    """The cases that were asked for; peers only where their interpreter has torch."""
    for text in args.cases or ():
        if not any(text in case.title for case in CASES):
            titles = "\n  ".join(case.title for case in CASES)
            raise SystemExit(f"no case has {text!r} in its title:\n  {titles}")
    texts = args.cases or [""]
    found = [c for c in CASES if any(text in c.title for text in texts)]
    why = ""
    if args.model:
        why = "a training step is that of our trainer"
    elif any(c.hook for c in found) and not peers_ddp.has_torch(args.python):
        why = "--python names an interpreter with torch"
    ours = [c for c in found if not c.hook]
    if why and ours != found:
        print(f"no peers: own figures alone ({why})")
        found = ours
    return found


def started(
    case: Case,
    net: namespaces.Network,
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> Side:
    """Start a method on all hosts, until the stack is closed."""
    return (_theirs if case.hook else _ours)(case, net, args, stack)


def _ours(
    case: Case,
    net: namespaces.Network,
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> Side:
    command = [sys.executable, "-m", "benchmarks.network_worker"]
    ranks = range(net.hosts)
    commands = [net.inside(rank, command) for rank in ranks]
    workers = crew.start(case.title, commands)
    stack.callback(workers.close)
    specs = {k: v for k, v in case._asdict().items() if k not in ("title", "hook")}
    task: dict[str, Any] = {"case": specs, "workers": net.hosts, "scale": args.scale}
    task |= {"model": args.model, "batch": args.batch}
    task |= {"coordinator": f"{net.address(0)}:{_PORT}"}
    facts = workers.ask([task | {"rank": rank} for rank in ranks], PATIENCE)

    def run(times: int, patience: float) -> list[float]:
        # A worker that is done begins the next one, so the mean of the workers is how
        # often one is done. The slowest of each would count what others do meanwhile.
        answers = workers.ask([times] * net.hosts, patience)
        return [statistics.mean(each) for each in zip(*answers, strict=True)]

    found = [Collective(**collective) for collective in facts[0]["collectives"]]
    return Side(run, facts[0]["elements"], found)


def _theirs(
    case: Case,
    net: namespaces.Network,
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> Side:
    # PyTorch has the outputs first; the sides of the matrices stay what they are.
    tree = trees.resnet50(args.scale)
    shapes = [shape[::-1] for shape in tree.values()]
    places = peers_ddp.Places(net.inside, net.address(0), "eth0")
    peer = peers_ddp.start(case.hook, shapes, net.hosts, args.python, places)
    stack.callback(peer.close)

    def run(times: int, patience: float) -> list[float]:
        del patience  # the peer has a limit of its own
        return [whole - bare for whole, bare in (peer.run() for _ in range(times))]

    return Side(run, trees.elements(tree), None)
