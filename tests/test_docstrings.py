"""One dialect of docstrings: known sections, in one order, indented alike."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxcomp

PACKAGE = Path(jaxcomp.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
SECTIONS = ["Args", "Returns", "Yields", "Raises", "Example", "References"]


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Names of what has a docstring, and the docstring."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text


def problems(text: str) -> list[str]:
    """What is not as in all docstrings."""
    lines, first = text.splitlines(), text.partition("\n\n")[0].rstrip()
    found = [] if first.endswith((".", ":", "?")) else ["no first sentence"]
    heads = [i for i, line in enumerate(lines) if re.fullmatch(r"[A-Z]\w+:", line)]
    names = [lines[i][:-1] for i in heads]
    found += [f"no such section: {name}" for name in names if name not in SECTIONS]
    known = [SECTIONS.index(name) for name in names if name in SECTIONS]
    if known != sorted(set(known)):
        found.append(f"sections in the order {names}")
    for i in heads:
        body = lines[i + 1] if i + 1 < len(lines) else ""
        if not re.match(r"  \S", body):
            found.append(f"{lines[i]} is not followed by text, indented by two spaces")
    if ">>>" in text and "Example" not in names:
        found.append("an example outside of the section Example")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_docstrings_have_one_dialect(path):
    found = {name: problems(text) for name, text in _docstrings(path)}
    assert not {name: what for name, what in found.items() if what}
