"""`jaxcomp list`: the names that configs know, each with a line about it."""

import argparse
import ast
import json
from typing import Any

from jaxcomp.cli.ends import add_command
from jaxcomp.cli.kinds import KINDS, about, registry_of
from jaxcomp.cli.standard import standard_configs
from jaxcomp.errors import UserError

__all__ = ["add_parser"]

EXAMPLE = """\
examples:
  jaxcomp list
  jaxcomp list compressors
  jaxcomp list configs --json
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `list`; as `ends.add_command`."""
    parser = add_command(
        subparsers,
        "list",
        _run,
        help="list methods, models, data sets, configs, ...",
        description="List the names of a kind, each with a line about it.",
        epilog=EXAMPLE,
    )
    parser.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(_kinds()))
    parser.add_argument("--json", action="store_true", help="for machines")


def _kinds() -> list[str]:
    return sorted([*KINDS, "configs"])


def _run(args: argparse.Namespace) -> int:
    rows = _rows(args.kind)
    if args.json:
        pairs = [dict(zip(("name", "about"), row, strict=True)) for row in rows]
        print(json.dumps(pairs, indent=1))
        return 0
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}".rstrip())
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
        from jaxcomp.specs import suggest

        raise UserError(f"there is no list of {kind!r}. {suggest(kind, _kinds())}")
    return [(name, about(it)) for name, it in sorted(registry_of(kind).items())]


def _title(path: Any) -> str:
    """The first line of a config file, which is not run."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
