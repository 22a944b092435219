"""Pages of the API reference, from the docstrings of the package.

A page holds lines `<!-- api: jaxcomp.mixers.gossip -->`. Each becomes the
documentation of that module, or, for a package, of it and all its public modules.
"""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]+)\)")
_EXAMPLE = re.compile(r"^\s*>>> ")
_CODE = re.compile(r"(`[^`]+`)")


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", expand)
    # Before napoleon, which adds markup of its own.
    app.connect("autodoc-process-docstring", to_markup, priority=100)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}


def expand(app: Any, page: str, source: list[str]) -> None:
    """Put the modules in place of the lines that name them.

    A link to a folder leads somewhere on a hosted repository alone: here it is text.
    """
    folder = (Path(app.srcdir) / page).parent
    source[0] = _LINE.sub(lambda found: _documentation(found[1]), source[0])
    source[0] = _LINK.sub(
        lambda found: found[1] if (folder / found[2]).is_dir() else found[0], source[0]
    )


def modules(name: str) -> list[str]:
    """A module, or a package and its public modules.

    Example:
      >>> modules("jaxcomp.mixers.local")
      ['jaxcomp.mixers.local', 'jaxcomp.mixers.local.diloco', \
'jaxcomp.mixers.local.local_sgd', 'jaxcomp.mixers.local.sparse_loco']
    """
    path = getattr(importlib.import_module(name), "__path__", None)
    inner = [module.name for module in pkgutil.iter_modules(path)] if path else []
    public = [f"{name}.{each}" for each in sorted(inner) if each[0] != "_"]
    return [name, *(found for each in public for found in modules(each))]


def _documentation(name: str) -> str:
    return "\n".join(map(_section, modules(name)))


def _section(name: str) -> str:
    """What a package takes from its modules is documented there."""
    own = "   :ignore-module-all:\n" if modules(name)[1:] else ""
    directive = f".. automodule:: {name}\n   :members:\n{own}"
    return f"## {name}\n\n```{{eval-rst}}\n{directive}```\n"


def to_markup(
    app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text: what reStructuredText would take for markup is not.

    Blocks that are indented by four spaces are code or formulas.
    """
    found: list[str] = []
    is_example = is_block = False
    for line in lines:
        after_blank = not found or not found[-1].strip()
        is_example = bool(_EXAMPLE.match(line)) or (is_example and bool(line.strip()))
        if line.strip() and not line.startswith("    "):
            is_block = False
        elif line.strip() and after_blank and not is_block and _is_text(found):
            found += ["::", ""]
            is_block = True
        found.append(line if is_example or is_block else _marked(line))
    lines[:] = found


def _is_text(lines: list[str]) -> bool:
    """Whether the last line that is not empty is not part of an indented section."""
    written = [line for line in lines if line.strip()]
    return bool(written) and not written[-1].startswith(" ")


def _marked(line: str) -> str:
    """Spans in backticks become literals, everything else is text."""
    # A span that goes on in the next line is no span.
    parts = [line] if line.count("`") % 2 else _CODE.split(line)
    text = "".join(
        f"`{part}`" if _CODE.fullmatch(part) else _escaped(part) for part in parts
    )
    # A literal ends before a space alone: `Spec`s.
    return re.sub(r"(``[^`]+``)(?=\w)", r"\1\\ ", text)


def _escaped(text: str) -> str:
    text = re.sub(r"([\\|*`])", r"\\\1", text)
    return re.sub(r"(?<=\w)_(?!\w)", r"\\_", text)


def skip(
    app: Any, kind: str, name: str, thing: Any, skipped: bool, options: Any
) -> Any:
    """Leave out the fields of NamedTuples, whose comments are in the source alone."""
    return True if type(thing).__name__ == "_tuplegetter" else None
