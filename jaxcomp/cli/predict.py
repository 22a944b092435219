"""`jaxcomp predict`: would compression make my steps faster?"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.errors import UserError

EXAMPLE = """example:
  jaxcomp predict --model resnet50 --bandwidth 1Gbit --workers 8
  jaxcomp predict --model '[(1000, 1000), (1000,)]' --bandwidth 100Mbit \\
      --methods sign 'two_phase: sign' 'dgc: top_k(keep=0.001)' --plot steps.svg
  jaxcomp predict --config=configs/default.py --bandwidth 1Gbit --per-host 4
  jaxcomp predict --model gpt2 --bandwidth 25Gbit --target=a100 --compute 300ms

A method is one line: a compressor, or an exchange with a way of its own; before it,
each with a colon, the memory, exchange or scope that is not the usual one.
docs/predict.md says what is measured and what is a model.
"""
_ASSUMED = 0.2  # seconds of forward and backward pass, where nobody says


class _Model(NamedTuple):
    """What is exchanged, and how long its gradient takes."""

    title: str
    tree: Any
    compute: float
    how: str  # where the seconds come from
    methods: tuple[str, ...] = ()  # of its own


def add_parser(subparsers: Any) -> None:
    """Add the command `predict`; as `run_command.add_command`."""
    parser = add_command(
        subparsers,
        "predict",
        _run,
        help="say whether compression would make steps faster on your links",
        description="Measure what methods compute on this machine, add what their "
        "messages take on links of a given speed, and say which of them helps.",
        epilog=EXAMPLE,
    )
    add = parser.add_argument
    model = "a name, shapes such as '[(10, 10), (10,)]', or a JSON file of shapes"
    add("--model", help=model)
    add("--config", help="model of file[,part,...]; --config.KEY=VALUE sets a key")
    add("--bandwidth", required=True, help="of a host, each way: 1Gbit, 125MB")
    add("--latency", default="0.2ms", help="between hosts, 0.2ms by default")
    add("--workers", type=int, default=8, metavar="N", help="8 by default")
    add("--per-host", type=int, default=1, metavar="N", help="who share its link, 1")
    add("--inside", metavar="RATE", help="bandwidth inside a host; default: no limit")
    add("--methods", nargs="+", metavar="METHOD", help="instead of the usual ones")
    add("--compute", metavar="TIME", help="of forward and backward pass, such as 200ms")
    sharing = "workers that share this machine's cores while it is measured, 1"
    add("--sharing", type=int, default=1, metavar="N", help=sharing)
    add("--target", help="model a GPU that is not here: a100, h100, ...")
    measure = "check the local time by as many processes here, over the loopback"
    add("--measure", action="store_true", help=measure)
    add("--plot", type=Path, metavar="FILE", help="step over bandwidth: FILE.svg")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(takes_config_keys=True)


def _run(args: argparse.Namespace) -> int:
    import jax

    from jaxcomp import parallel
    from jaxcomp.cli import config as quantities
    from jaxcomp.cli.prediction import as_json, draw, lines_of, target_seconds, verdict
    from jaxcomp.wire.cost import Link
    from jaxcomp.wire.predict import USUAL, predict

    if bool(args.model) == bool(args.config):
        raise UserError("give --model or --config, one of the two")
    if args.measure and (args.target or args.sharing != args.workers or args.json):
        message = (
            "compares with as many processes as there are workers, which share this "
            f"machine: add --sharing={args.workers}, without --target and --json"
        )
        raise UserError(f"--measure {message}")
    if args.config_keys and not args.config:
        raise UserError(f"unknown argument {args.config_keys[0]!r}")
    latency = quantities.seconds("--latency", args.latency)
    link = Link(quantities.bandwidth("--bandwidth", args.bandwidth), latency)
    inside = args.inside and Link(quantities.bandwidth("--inside", args.inside))
    compute = args.compute and quantities.seconds("--compute", args.compute)
    jax.config.update("jax_platforms", "cpu")
    parallel.keep_pages()
    parallel.setup(max(1, args.sharing))
    model = _model(args, compute or None)
    found = predict(
        model.tree,
        args.methods or (*model.methods, *USUAL),
        link=link,
        workers=args.workers,
        compute=model.compute,
        per_host=args.per_host,
        inside=inside or None,
        sharing=args.sharing,
        local=target_seconds(args.target, args.workers, args.per_host)
        if args.target
        else None,
    )
    if args.plot:
        draw(found, args.plot)
    if args.json:
        facts = {"model": model.title, "compute_is": model.how, "local_is": _how(args)}
        print(json.dumps(facts | as_json(found), indent=1))
        return 0
    from jaxcomp.core.units import bytes_text, rate_text, seconds_text

    hosts = "" if args.per_host == 1 else f", {args.per_host} on each host"
    print(
        f"gradient  {model.title}: {found.elements:,} numbers in {found.tensors} "
        f"tensors, {bytes_text(found.dense)}\n"
        f"workers   {args.workers}{hosts}\n"
        f"links     {rate_text(link.bandwidth)} each way, "
        f"{seconds_text(link.latency)} from host to host\n"
        f"compute   {seconds_text(model.compute)} a step, {model.how}\n"
        f"local     {_how(args)}\n",
        *lines_of(found),
        "",
        verdict(found),
        sep="\n",
    )
    if args.measure:
        print("", *_checked(args, found, model.tree), sep="\n")
    if args.plot:
        print(f"plot: {args.plot}", file=sys.stderr)
    return 0


def _checked(args: argparse.Namespace, found: Any, tree: Any) -> list[str]:
    """What processes of this machine take, beside what they should compute."""
    from jaxcomp.cli.prediction import loopback_seconds
    from jaxcomp.core.units import seconds_text
    from jaxcomp.wire.predict import spec_of_tree

    methods = [row.method for row in found.rows]
    taken = loopback_seconds(methods, spec_of_tree(tree), args.workers)
    times = [map(seconds_text, (taken[r.method], r.exchange.local)) for r in found.rows]
    said = [f"{whole:>8}, of which {local:>8} is local" for whole, local in times]
    return [
        f"{args.workers} processes on this machine, over the loopback:",
        aligned(zip(methods, said, strict=True)),
        "The rest is what the transport copies and adds.",
    ]


def _how(args: argparse.Namespace) -> str:
    import os

    if args.target:
        return (
            f"compress and decode by a model of the {args.target}: launches and memory "
            "traffic of the compiled program, which did not run"
        )
    cores = os.cpu_count()
    share = "one worker has" if args.sharing == 1 else f"{args.sharing} workers share"
    return f"compress and decode, measured here: {share} all {cores} cores"


def _model(args: argparse.Namespace, compute: float | None) -> _Model:
    told = "as you say" if compute else "assumed (--compute says yours)"
    if args.model:
        from jaxcomp.cli.prediction import read_tree

        return _Model(args.model, read_tree(args.model), compute or _ASSUMED, told)
    from jaxcomp.cli.config import config_of
    from jaxcomp.cli.prediction import compute_seconds, method_of, params_of

    config = config_of(args)
    with config.unlocked():
        config.workers = args.workers
    if not compute and args.target:
        compute = _ASSUMED
    elif not compute:
        compute, told = compute_seconds(config), "of this config, measured here"
    title = f"{config.model} of {args.config}"
    return _Model(title, params_of(config), compute, told, method_of(config))
