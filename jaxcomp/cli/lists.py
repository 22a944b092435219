"""`jaxcomp list`: names of methods, models, data sets, configs, ..."""

import argparse
import ast
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxcomp.cli.config import standard_configs
from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.errors import UserError


class Kind(NamedTuple):
    """A registry, found without importing it."""

    module: str
    what: str  # it decides
    registry: str = "REGISTRY"


KINDS = {
    "augmentations": Kind("jaxcomp.data", "random changes of images", "AUGMENTATIONS"),
    "compressors": Kind("jaxcomp.compressors", "what is lost"),
    "datasets": Kind("jaxcomp.data", "examples to learn from"),
    "eval_views": Kind("jaxcomp.data", "what a test sees", "VIEWS"),
    "exchanges": Kind("jaxcomp.exchanges", "how gradients become one mean"),
    "language_models": Kind("jaxcomp.models", "of texts", "LANGUAGE"),
    "loggers": Kind("jaxcomp.runs.loggers", "where figures go"),
    "memories": Kind("jaxcomp.memory", "what happens to what is not sent"),
    "mixers": Kind(
        "jaxcomp.transforms.make_mixer", "how workers' own models mix", "MIXERS"
    ),
    "models": Kind("jaxcomp.models", "what is trained"),
    "optimizers": Kind("jaxcomp.training.optimizers", "how it learns"),
    "partitions": Kind("jaxcomp.data", "who sees which examples", "PARTITIONS"),
    "problems": Kind("jaxcomp.convex.problems", "logistic regressions"),
    "schedules": Kind("jaxcomp.training.schedules", "rates over a run"),
    "scopes": Kind("jaxcomp.scope", "what is compressed as one vector"),
    "tasks": Kind("jaxcomp.training.tasks", "data, model and loss"),
    "texts": Kind("jaxcomp.data.text", "texts to learn from"),
    "topologies": Kind("jaxcomp.mixers.gossip.topology", "graphs of gossip"),
}


def registry_of(kind: str) -> Mapping[str, Callable[..., Any]]:
    """The registry of a kind in `KINDS`."""
    found = KINDS[kind]
    return getattr(importlib.import_module(found.module), found.registry)


def about(factory: Callable[..., Any]) -> str:
    """The first line of a factory's docstring; of a data set, what it holds.

    Example:
      >>> from jaxcomp.compressors import top_k
      >>> about(top_k)
      'Keep the k = round(keep * n) elements of largest magnitude, at least one.'
    """
    if isinstance(factory, functools.partial):  # a data set of an archive
        return factory.args[0].about
    text = inspect.getdoc(factory) or ""
    return " ".join(text.partition("\n\n")[0].split())


def add_parser(subparsers: Any) -> None:
    """Add the command `list`; as `run_command.add_command`."""
    parser = add_command(subparsers, "list", _list)
    parser.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(_kinds()))
    parser.add_argument("--json", action="store_true", help="for machines")


def _kinds() -> list[str]:
    return sorted([*KINDS, "configs"])


def _list(args: argparse.Namespace) -> int:
    """List the names of a kind, each with a line about it.

    examples:
      jaxcomp list
      jaxcomp list compressors
      jaxcomp list configs --json
    """
    rows = _rows(args.kind)
    if args.json:
        pairs = [dict(zip(("name", "about"), row, strict=True)) for row in rows]
        print(json.dumps(pairs, indent=1))
        return 0
    print(aligned(rows))
    return 0


def _rows(kind: str | None) -> list[tuple[str, str]]:
    """Names and lines; of the kinds themselves without one."""
    if kind is None:
        texts = {name: found.what for name, found in KINDS.items()}
        return sorted(
            {**texts, "configs": "whole runs, with their figures, and parts"}.items()
        )
    if kind == "configs":
        return [(name, _title(path)) for name, path in standard_configs().items()]
    if kind not in KINDS:
        from jaxcomp.core.specs import suggest

        raise UserError(f"there is no list of {kind!r}. {suggest(kind, _kinds())}")
    return [(name, about(it)) for name, it in sorted(registry_of(kind).items())]


def _title(path: Any) -> str:
    """The first line of a config file, which is not run."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
