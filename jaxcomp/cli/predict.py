"""`jaxcomp predict`: would compression make my steps faster?"""

import argparse
import ast
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from jaxcomp import models, parallel
from jaxcomp.cli import explain
from jaxcomp.cli.config import config_of
from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import suggest
from jaxcomp.core.types import Exchange, Spec
from jaxcomp.core.units import bytes_text, rate_text, seconds_text, times_text
from jaxcomp.training.plan import build, gather_workers
from jaxcomp.transforms.make import compressor_for
from jaxcomp.wire import shapes, targets
from jaxcomp.wire.cost import Link
from jaxcomp.wire.predict import (
    USUAL,
    Local,
    Prediction,
    Row,
    predict,
    start_of,
    step_of,
)
from jaxcomp.wire.targets import GPUS

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
    parser = add_command(subparsers, "predict", _run)
    add = parser.add_argument
    model = "a name, or shapes such as '[(10, 10), (10,)]'"
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
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(takes_config_keys=True)


def _run(args: argparse.Namespace) -> int:
    r"""Measure what methods compute on this machine, add what their messages take on
    links of a given speed, and say which of them helps.

    example:
      jaxcomp predict --model resnet50 --bandwidth 1Gbit --workers 8
      jaxcomp predict --model '[(1000, 1000), (1000,)]' --bandwidth 100Mbit \
          --methods sign 'two_phase: sign' 'dgc: top_k(keep=0.001)'
      jaxcomp predict --config=configs/default.py --bandwidth 1Gbit --per-host 4
      jaxcomp predict --model gpt2 --bandwidth 25Gbit --target=a100 --compute 300ms

    A method is one line: a compressor, or an exchange with a way of its own; before it,
    each with a colon, the memory, exchange or scope that is not the usual one.
    docs/predict.md says what is measured and what is a model.
    """
    if bool(args.model) == bool(args.config):
        raise UserError("give --model or --config, one of the two")
    if args.config_keys and not args.config:
        raise UserError(f"unknown argument {args.config_keys[0]!r}")
    latency = duration("--latency", args.latency)
    link = Link(bandwidth("--bandwidth", args.bandwidth), latency)
    inside = args.inside and Link(bandwidth("--inside", args.inside))
    compute = args.compute and duration("--compute", args.compute)
    jax.config.update("jax_platforms", "cpu")
    parallel.keep_pages()
    parallel.setup(max(1, args.sharing))
    model = _model(args, compute or None)
    place = args.target, args.workers, args.per_host
    local = target_seconds(*place) if args.target else None
    found = predict(
        model.tree,
        args.methods or (*model.methods, *USUAL),
        link=link,
        workers=args.workers,
        compute=model.compute,
        per_host=args.per_host,
        inside=inside or None,
        sharing=args.sharing,
        local=local,
    )
    if args.json:
        facts = {"model": model.title, "compute_is": model.how, "local_is": _how(args)}
        print(json.dumps(facts | as_json(found), indent=1))
        return 0
    hosts = "" if args.per_host == 1 else f", {args.per_host} on each host"
    size = f"{found.elements:,} numbers in {found.tensors} tensors"
    rate, delay = rate_text(link.bandwidth), seconds_text(link.latency)
    heading = {
        "gradient": f"{model.title}: {size}, {bytes_text(found.dense)}",
        "workers": f"{args.workers}{hosts}",
        "links": f"{rate} each way, {delay} from host to host",
        "compute": f"{seconds_text(model.compute)} a step, {model.how}",
        "local": _how(args),
    }
    print(aligned(heading.items()), "", *lines_of(found), "", verdict(found), sep="\n")
    return 0


def _how(args: argparse.Namespace) -> str:
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
        return _Model(args.model, read_tree(args.model), compute or _ASSUMED, told)
    config = config_of(args)
    with config.unlocked():
        config.workers = args.workers
    if not compute and args.target:
        compute = _ASSUMED
    elif not compute:
        compute, told = compute_seconds(config), "of this config, measured here"
    title = f"{config.model} of {args.config}"
    return _Model(title, params_of(config), compute, told, method_of(config))


_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_RATES = {"kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9, **_BYTES}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)")


def bandwidth(flag: str, text: str) -> float:
    """Bytes a second, from bits or bytes.

    Example:
      >>> bandwidth("--bandwidth", "1Gbit/s"), bandwidth("--bandwidth", "125MB")
      (125000000.0, 125000000.0)
      >>> bandwidth("--bandwidth", "1000")
      Traceback (most recent call last):
      jaxcomp.UserError: --bandwidth is a number with one of kbit, Mbit, ...
    """
    return _read(flag, text.removesuffix("/s"), _RATES, "1Gbit")


def duration(flag: str, text: str) -> float:
    """A duration.

    Example:
      >>> duration("--latency", "0.2ms"), duration("--compute", "0.2 s")
      (0.0002, 0.2)
    """
    return _read(flag, text, _SECONDS, "0.2ms")


def _read(flag: str, text: str, units: Mapping[str, float], example: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if not found or found[2] not in units:
        message = f"is a number with one of {', '.join(units)}, such as {example}"
        raise UserError(f"{flag} {message}, not {text!r}")
    return float(found[1]) * units[found[2]]


def read_tree(text: str) -> Any:
    """The tree that a text names.

    Args:
      text: a name in `TREES` of `jaxcomp.wire.shapes`, a model, or shapes.

    Example:
      >>> read_tree("[(3, 4), (4,)]")
      [(3, 4), (4,)]
    """
    if text in shapes.TREES:
        return shapes.named_tree(text)
    if text.startswith(("[", "{")):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            message = "is no list of shapes such as [(3, 4), (4,)]"
            raise UserError(f"{text!r} {message}") from None
    if text not in models.REGISTRY:
        valid = {*models.REGISTRY, *shapes.TREES}
        raise UserError(f"unknown model {text!r}. {suggest(text, valid)}")
    return explain.params_of(text)


_WARM_UP, _TIMED = 8, 7  # steps


def params_of(config: Any) -> Any:
    """The specs of the parameters that a config trains."""
    return jax.eval_shape(_alone(config).fresh).params


def method_of(config: Any) -> tuple[str, ...]:
    """The method of a config as one line; none where it mixes models."""
    if config.mixer or config.policy or config.exchange == "exact":
        return ()
    parts = [config.memory, config.exchange, config.scope]
    compressor = compressor_for(config.exchange, config.compressor)
    last = [compressor] if compressor else [parts.pop(1)]
    return (": ".join([*parts, *last]),)


def compute_seconds(config: Any) -> float:
    """Measure the training step of one worker that exchanges nothing.

    That is its forward and backward pass and the update of the optimiser, with its
    share of the batch. The median of several steps.
    """
    setup = _alone(config)
    stage = setup.stages.at(setup.total_steps - 1)
    state = parallel.spread(setup.fresh(stage.segment), setup.workers)
    axes = parallel.axes(state)
    batch = setup.example(stage.segment)
    step = parallel.map_step(
        setup.step(stage),
        setup.workers,
        in_axes=(axes, *(0 for _ in batch)),
        out_axes=(axes, 0),
    )
    given = parallel.place(tuple(x[None] for x in batch), setup.workers, 0)
    return statistics.median(_timed(lambda state: step(state, *given)[0], state))


def _alone(config: Any) -> Any:
    """The setup of one worker with its share of the batch, who exchanges nothing."""
    mine = config.copy_and_resolve_references()
    with mine.unlocked():
        share = config.batch_per_worker or config.batch_size // max(1, config.workers)
        mine.update(batch_size=max(1, share), batch_per_worker=0)
        mine.update(workers=1, mixer="", topology="", exchange="exact", memory="none")
        mine.update(compressor="none", policy=(), keep_warmup="", dense_for="")
        mine.update(flush_every="", overlap=1, mapper="shard_map", workers_per_device=1)
        mine.update(devices_per_node=1, regime=_of_one_worker(config))
    return build(mine, gather_workers(mine))


def _of_one_worker(config: Any) -> Any:
    """The regime of a config, in which each batch is the share of one worker."""
    if isinstance(config.regime, str):
        return config.regime

    def shared(entry: Any) -> Any:
        if isinstance(entry, str) or "batch_size" not in entry[1]:
            return entry
        when, settings = entry
        share = max(1, settings["batch_size"] // max(1, config.workers))
        return when, {**settings, "batch_size": share}

    return tuple(shared(entry) for entry in config.regime)


def _timed(step: Callable[[Any], Any], state: Any) -> list[float]:
    """Seconds of some steps, each from the state of the one before."""
    taken: list[float] = []
    for _ in range(_WARM_UP + _TIMED):
        began = time.perf_counter()
        state = jax.block_until_ready(step(state))
        taken.append(time.perf_counter() - began)
    return taken[_WARM_UP:]


_LAUNCH_SECONDS = 3e-6  # of a kernel; 2 to 4 are usual
_WAIT_SECONDS = 20e-6  # of the host, for a loop whose length follows from data


def target_seconds(name: str, workers: int, per_host: int = 1) -> Local:
    """Make a function that models how long exchanges compute on a GPU.

    Args:
      name: of the GPU, such as "a100".
      workers: one GPU each.
      per_host: of them.

    Raises:
      UserError: the GPU is not known, or XLA's compiler for it is not installed.
    """
    if name not in GPUS:
        raise UserError(
            f"no memory bandwidth is known of {name!r}. {suggest(name, GPUS)}"
        )
    target = targets.make(name, workers // per_host, per_host, axis=parallel.AXIS)

    def compiled(exchange: Exchange, spec: Spec) -> Any:
        state = start_of(exchange, spec)
        axes, step = parallel.axes(state), step_of(exchange)
        options = {"in_axes": (axes, 0), "out_axes": (None, axes)}
        mapped = parallel.map_step(step, target.workers, donate_argnums=(0,), **options)
        given = targets.specs(state, target, axes), targets.specs(spec, target)
        return targets.compiled(mapped, target, *given)

    return lambda every, spec: [_modelled(compiled(each, spec), name) for each in every]


def _modelled(compiled: Any, name: str) -> float:
    program = targets.read(compiled)
    return (
        program.launches * _LAUNCH_SECONDS
        + targets.memory_traffic(compiled) / GPUS[name].bandwidth
        + len(program.open_loops) * _WAIT_SECONDS
    )


_HEADINGS = (
    *("method", "leaves", "fewer", "exchange", "local", "step", "speed-up"),
    "pays below",
)


def lines_of(found: Prediction) -> list[str]:
    """The table of a prediction, a line for each method."""
    rows = [[*_HEADINGS], *(_cells(row, found) for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def verdict(found: Prediction) -> str:
    """What the table says, in a sentence or two."""
    exact, first = found.exact, found.rows[0]
    share = exact.exchange.seconds / exact.step
    took = f"`exact` spends {100 * share:.0f} % of its step on the exchange"
    if found.helps:
        gain = f"{first.method} makes the step {first.speedup:.3g} times as fast"
        return f"{took}; {gain}."
    below = [row for row in found.rows if 0 < row.break_even < math.inf]
    text = f"Nothing here helps: {took}, and no method takes less time than that."
    if below:
        last = max(below, key=lambda row: row.break_even)
        rate = rate_text(last.break_even)
        text += f" On links below {rate}, {last.method} would be the first that does."
    return text


def as_json(found: Prediction) -> dict[str, Any]:
    """The same figures for programs, in seconds and bytes; null stands for infinity."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def row_of(row: Row) -> dict[str, Any]:
        return {
            "method": row.method,
            "sent": row.exchange.nbytes,
            "times_fewer": number(found.fewer(row)),
            "rounds": row.exchange.rounds,
            "exchange": row.exchange.seconds,
            "local": row.exchange.local,
            "step": row.step,
            "speedup": row.speedup,
            "break_even": number(row.break_even),
        }

    plain = {name: getattr(found, name) for name in Prediction._fields}
    plain["rows"] = [row_of(row) for row in found.rows]
    plain["link"] = found.link._asdict()
    return plain | {"helps": found.helps, "verdict": verdict(found)}


def _cells(row: Row, found: Prediction) -> list[str]:
    return [
        row.method,
        bytes_text(row.exchange.nbytes),
        times_text(found.fewer(row)),
        seconds_text(row.exchange.seconds),
        seconds_text(row.exchange.local),
        seconds_text(row.step),
        times_text(row.speedup),
        _pays_below(row),
    ]


def _pays_below(row: Row) -> str:
    if row.method == "exact":
        return ""
    if row.break_even == 0:
        return "never"
    return "always" if math.isinf(row.break_even) else rate_text(row.break_even)
