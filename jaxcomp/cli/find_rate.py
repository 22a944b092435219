"""`jaxcomp find-rate`: which learning rates a config can take."""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from jaxcomp import parallel
from jaxcomp.cli.config import config_of
from jaxcomp.cli.run_command import add_command
from jaxcomp.core.errors import UserError
from jaxcomp.parallel.cluster import find_cluster
from jaxcomp.training.rate_trial import (
    LIMIT,
    Suggestion,
    Trial,
    Tried,
    make_trial,
    suggested,
    try_rates,
)

_ROWS = 12  # of the table


def add_parser(subparsers: Any) -> None:
    """Add the command `find-rate`; as `run_command.add_command`.

    Example:
      >>> parser = argparse.ArgumentParser()
      >>> add_parser(parser.add_subparsers())
      >>> parser.parse_args(["find-rate", "--config=default", "--to=1"]).last
      1.0
    """
    parser = add_command(subparsers, "find-rate", _run)
    add = parser.add_argument
    about = "file[,part,...]; --config.KEY=VALUE sets a key"
    add("--config", required=True, help=about)
    first = "value of learning_rate in the first step, 1e-5 by default"
    add("--from", dest="first", type=float, default=1e-5, metavar="RATE", help=first)
    last = "in the last step, 10 by default"
    add("--to", dest="last", type=float, default=10.0, metavar="RATE", help=last)
    add("--steps", type=int, default=100, metavar="N", help="at most, 100 by default")
    add("--json", action="store_true", help="print JSON, with all steps")
    parser.set_defaults(takes_config_keys=True)


def _run(args: argparse.Namespace) -> int:
    r"""Take the steps of a config at a learning rate that grows, show what the loss
    does, and suggest a rate.

    examples:
      jaxcomp find-rate --config=default
      jaxcomp find-rate --config=cifar10_dgc --from=0.001 --to=10 --steps=200 \
          --config.keep_warmup=

    The steps are the first ones of the run, with its compressor, exchange and memory;
    only the rate is another: it grows in each by the same factor, until the loss,
    smoothed, is four times its least. No run is begun, and no folder of one is touched.
    """
    config = config_of(args)
    if find_cluster(os.environ):
        raise UserError("runs in one process: start it once, without --coordinator")
    parallel.keep_pages()
    trial = make_trial(config, args.first, args.last, args.steps)
    shown = {round(i * (args.steps - 1) / (_ROWS - 1)) + 1 for i in range(_ROWS)}
    show = (lambda text: None) if args.json else print
    show(_heading(trial))
    tried: list[Tried] = []
    for one in try_rates(trial, lambda text: print(text, file=sys.stderr)):
        if not tried:
            show(f"\n{'step':>6}  {'rate':>9}  {'loss':>9}  {'smoothed':>9}")
        tried.append(one)
        if one.step in shown:
            show(_row(one))
    if tried[-1].step not in shown:
        show(_row(tried[-1]))
    found = suggested(tried)
    show("\n" + "\n".join(_verdict(tried, found, trial)))
    if args.json:
        print(json.dumps(_facts(tried, found, trial), indent=1))
    return 0


def _heading(trial: Trial) -> str:
    setup = trial.plan
    lines = [f"{setup.task.model} on {setup.task.data}", f"method: {setup.method.name}"]
    if trial.scaling != 1:
        lines.append(f"lr_scaling multiplies each rate by {trial.scaling:.4g}")
    first, last = setup.stages.at(0), setup.stages.at(setup.total_steps - 1)
    if first._replace(phase=0) != last._replace(phase=0):
        lines.append(f"first steps send {first}; later ones of the run {last}")
    return "\n".join(lines)


def _row(one: Tried) -> str:
    cells = (one.rate, one.loss, one.smoothed)
    return f"{one.step:>6}  " + "  ".join(f"{cell:>9.4g}" for cell in cells)


def _verdict(
    tried: Sequence[Tried], found: Suggestion | None, trial: Trial
) -> list[str]:
    """The lines below the table: how it ended, and what is suggested."""
    whole = len(tried) == len(trial.rates)
    lines = [] if whole else [f"ended at rate {tried[-1].rate:.3g}: {_why(tried[-1])}"]
    if found is None:
        return [*lines, "The loss did not fall: begin lower, or take more steps."]
    if whole and found.least == tried[-1].rate:
        lines.append("The loss still fell at the last rate: go on to larger ones.")
    return [
        *lines,
        f"learning_rate={found.steepest:.2g}: where the loss falls the most",
        f"learning_rate={found.tenth:.2g}: a tenth of the rate of the least loss",
    ]


def _why(last: Tried) -> str:
    if math.isfinite(last.loss):
        return f"the loss is more than {LIMIT:g} times its least"
    return "the step is not finite"


def _facts(
    tried: Sequence[Tried], found: Suggestion | None, trial: Trial
) -> dict[str, Any]:
    """The same for programs; null stands for what is not finite."""

    def plain(one: Tried) -> dict[str, Any]:
        values = one._asdict().items()
        return {name: x if math.isfinite(x) else None for name, x in values}

    return {
        "method": trial.plan.method.name,
        "scaling": trial.scaling,
        "suggested": found and found._asdict(),
        "ended": "" if len(tried) == len(trial.rates) else _why(tried[-1]),
        "steps": [plain(one) for one in tried],
    }
