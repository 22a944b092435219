"""`jaxcomp train`: train a model from a config."""

import argparse
import functools
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcomp.cli.run_command import Parser, add_command, run_command
from jaxcomp.core.errors import RunFailed, UserError

_LONGEST = 80  # characters of what was set; file systems take names of 255 bytes


def default_workdir(names: str, keys: Mapping[str, Any], suffix: str = "") -> Path:
    """The folder runs/CONFIG+PART,KEY=VALUE.SUFFIX, the same for the same run.

    Keys that leave a run the same, such as `log_every`, are left out.

    Args:
      names: of config and parts, as on the command line.
      keys: what else the command sets, with its values.
      suffix: from the command line, to tell runs of one config apart.

    Example:
      >>> keys = {"seed": 1, "memory": "", "log_every": 5}
      >>> str(default_workdir("cifar10_exact,parts/top_k:0.001", keys, "again"))
      'runs/cifar10_exact+top_k-0.001,memory=,seed=1.again'
    """
    from jaxcomp.cli.config import split_names
    from jaxcomp.runs.keys import SAME

    configs = "+".join(_safe(_stem(name)) for name in split_names(names))
    counted = sorted((k, str(v)) for k, v in keys.items() if k not in SAME)
    pairs = "".join(f",{key}={_safe(value)}" for key, value in counted)
    if len(pairs) > _LONGEST:
        digest = hashlib.sha256(repr(counted).encode()).hexdigest()[:6]
        pairs = f"{pairs[:_LONGEST]}-{digest}"
    if suffix and _safe(suffix) != suffix:
        message = f"has letters, digits and any of '._=-', such as {_safe(suffix)!r}"
        raise UserError(f"--suffix {message}, not {suffix!r}")
    return Path("runs") / f"{configs}{pairs}{'.' if suffix else ''}{suffix}"


def _stem(name: str) -> str:
    """The name of a file without its folder and ending, with what a colon adds."""
    path, *argument = name.split(":", 1)
    return ":".join([Path(path).stem, *argument])


def _safe(text: str) -> str:
    """The text with a dash for what shells and file systems may take amiss."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).rstrip("-") or "-" * bool(text)


def add_parser(subparsers: Any) -> None:
    """Add the command `train`; as `run_command.add_command`.

    Example:
      >>> parser = argparse.ArgumentParser()
      >>> add_parser(parser.add_subparsers())
      >>> parser.parse_args(["train", "--config=default", "--workdir=a"]).workdir
      'a'
    """
    parser = add_command(subparsers, "train", _on_kept_pages)
    _add_flags(parser)
    parser.set_defaults(takes_config_keys=True)


def main(argv: Sequence[str], about: str = "") -> int:
    """Run train.py with these words; returns the exit code.

    Args:
      argv: the words after the program's name.
      about: what `--help` shows first.
    """

    def parse_and_run() -> int:
        parser = Parser("train.py", description=about)
        _add_flags(parser)
        args, args.config_keys = parser.parse_known_args(argv)
        return _main(args)

    debug = "--debug" in argv
    return run_command("train.py", parse_and_run, (UserError,), debug=debug)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    about = "needed: file, or name of a standard config such as default; then parts"
    add("--config", metavar="CONFIG[,PART...]", help=about)
    folder = "run folder; by default runs/CONFIG+PART,KEY=VALUE"
    add("--workdir", metavar="FOLDER", help=folder)
    add("--suffix", metavar="NAME", help="ends the name of that default folder")
    about = "only evaluate that checkpoint: best, last or the number of its step"
    add("--evaluate", metavar="WHICH", help=about)
    splits = ("test", "train")
    add("--split", choices=splits, help="what is evaluated, test by default")
    about = "show method, bytes, memory and schedule; train and write nothing"
    add("--dry-run", action="store_true", help=about)
    several = parser.add_argument_group("several processes", "see docs/cluster.md")
    add = several.add_argument
    add("--coordinator", metavar="HOST:PORT", help="of process 0; auto: jax finds it")
    add("--processes", type=int, metavar="N", help="their number")
    add("--process", type=int, metavar="I", help="index of this one")
    add("--join-timeout", metavar="SECONDS", help="for all of them to come, 300")
    lost = "of silence, after which one is lost and the others end, 60"
    add("--peer-timeout", metavar="SECONDS", help=lost)


def _on_kept_pages(args: argparse.Namespace) -> int:
    r"""Train a model whose workers exchange compressed gradients.

    examples:
      jaxcomp train --config=default --workdir=runs/first
      jaxcomp train --config=cifar10_dgc --workdir=runs/dgc
      jaxcomp train --config=default --workdir=runs/eight \
          --config.compressor='qsgd(levels=7)' --config.memory=none --config.workers=8
      jaxcomp train --config=cifar10_exact,parts/dgc,parts/small --suffix=try
      jaxcomp train --config=default --workdir=runs/first --evaluate=best --split=train
      jaxcomp train --config=cifar10_dgc --dry-run

    A config is the name of a standard one, which `jaxcomp list configs` shows, or the
    path of a file. After commas follow parts, each of which changes what stands before
    it; then every key can be set with --config.KEY=VALUE. A folder that holds a run of
    the same config goes on where it stands. Without --workdir its name follows from
    configs and keys, so the same command finds it again.
    """
    from jaxcomp.parallel import keep_pages

    keep_pages()  # train.py does so before anything else
    return _main(args)


def _main(args: argparse.Namespace) -> int:
    _check_given(args)
    from asyncio.log import logger as of_loops

    from absl import logging

    from jaxcomp.cli.config import changed_keys, load_config, override
    from jaxcomp.parallel.cluster import TIME_LIMITS, find_cluster, time_limit
    from jaxcomp.runs.folder import check_workdir

    logging.set_verbosity(logging.FATAL)  # orbax logs what it writes and what it raises
    of_loops.setLevel("CRITICAL")
    shown = sys.unraisablehook
    # tensorstore's threads answer orbax after an error, which is told, has closed this.
    sys.unraisablehook = lambda args: (
        str(args.exc_value) == "Event loop is closed" or shown(args)
    )
    for name in ("coordinator", "processes", "process", "join_timeout", "peer_timeout"):
        if getattr(args, name) is not None:
            os.environ[f"JAXCOMP_{name.upper()}"] = str(getattr(args, name))
    for flag in TIME_LIMITS:
        time_limit(flag, os.environ)  # refuses a bad one before all else
    config = override(load_config(args.config), args.config_keys)
    if args.workdir is None:
        keys = changed_keys(config, args.config_keys)
        workdir = default_workdir(args.config, keys, args.suffix or "")
    else:
        workdir = args.workdir
    if not find_cluster(os.environ):
        check_workdir(workdir)  # several processes do so together
    if args.dry_run:
        from jaxcomp import training

        text = training.dry_run(config, workdir)
        if _is_first():
            print(text)
        return 0
    return _run(config, workdir, args.evaluate, args.split or "test")


def _check_given(args: argparse.Namespace) -> None:
    """Refuse flags that are missing, or that contradict each other."""
    if args.config is None:
        from jaxcomp.cli.config import is_part, standard_configs

        whole = ", ".join(name for name in standard_configs() if not is_part(name))
        message = "the following arguments are required: --config"
        raise UserError(f"{message}. Standard configs: {whole}")
    if args.workdir is not None and args.suffix is not None:
        message = "ends the name of the default folder, and --workdir names another one"
        raise UserError(f"--suffix {message}: give one of the two")
    if args.dry_run and args.evaluate is not None:
        raise UserError("--dry-run trains nothing and --evaluate neither: give one")
    if args.split is not None and args.evaluate is None:
        raise UserError("--split says what --evaluate looks at: add --evaluate=best")
    if args.evaluate is not None:
        from jaxcomp.training.checkpoints import check_which

        check_which(args.evaluate)


def run(
    config: Any, workdir: str | os.PathLike[str], evaluate: str | None = None
) -> int:
    """Train, or evaluate a checkpoint; returns the exit code.

    Args:
      config: ConfigDict.
      workdir: run folder.
      evaluate: None trains; "best", "last" or a step evaluates that checkpoint.
    """
    command = functools.partial(_run, config, workdir, evaluate)
    return run_command("train.py", command, (UserError,))


def _run(
    config: Any,
    workdir: str | os.PathLike[str],
    evaluate: str | None,
    split: str = "test",
) -> int:
    import jax

    from jaxcomp import report, training
    from jaxcomp.parallel.cluster import has_others, this_process
    from jaxcomp.runs.display import closing_lines
    from jaxcomp.runs.open_run import Interrupted

    try:
        if evaluate:
            scores = training.evaluate(config, workdir, evaluate, split)
            if _is_first():
                name = "" if evaluate.isdecimal() else f"{evaluate} "
                print(f"{name}checkpoint, {training.score_line(scores)}")
            return 0
        result = training.train_and_evaluate(config, workdir)
        if _is_first():
            summary = training.summary(result)
            try:
                page = report.write_report(workdir)
            except OSError as error:
                print(summary)
                problem = (
                    f"its page cannot be written: {error.strerror}. Make room, and"
                )
                again = f"`jaxcomp report {workdir}` writes it"
                raise RunFailed(f"the run has ended, but {problem} {again}") from error
            print(closing_lines(summary, Path(workdir), page))
    except Interrupted as interruption:
        lines = [str(interruption), *_report_so_far(workdir)]
        print(*lines, "Go on with the same command.", sep="\n", file=sys.stderr)
        return 128 + interruption.signum
    except RunFailed:
        for line in [] if evaluate else _report_so_far(workdir):
            print(line, file=sys.stderr)
        raise
    except jax.errors.JaxRuntimeError as error:
        if not has_others():
            raise
        first = str(error).splitlines()[0]
        message = f"{this_process()} has failed or has lost another one: {first}"
        raise RunFailed(
            f"{message}. The same command goes on from the newest whole checkpoint."
        ) from error
    return 0


def _is_first() -> bool:
    """Whether this process speaks for all of the run."""
    import jax

    return jax.process_index() == 0


def _report_so_far(workdir: str | os.PathLike[str]) -> list[str]:
    """Write the report of an interrupted run, if an epoch has ended."""
    from jaxcomp import report
    from jaxcomp.runs.folder import RunError

    if not _is_first():
        return []
    try:
        return [f"report so far: {report.write_report(workdir)}"]
    except (RunError, OSError):
        return []
