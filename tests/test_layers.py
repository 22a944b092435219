"""Who may import whom, and who may name what: the plan of the house, checked."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomp

PACKAGE = Path(jaxcomp.__file__).parent
# Each row may import from rows above it, and from its own.
ROWS = [
    {
        *("_version", "base", "contracts", "on_resize", "errors"),
        *("files", "imported", "output", "specs"),
    },
    {"progress_file", "launch"},
    {"trees", "keys", "noise"},
    {"coding", "magnitudes", "selection", "segments", "segment_selection"},
    {"compressors"},
    {"scope"},
    {
        *("border", "batching", "colouring", "lanes", "collectives"),
        *("bounds", "infos", "starts", "rebuilding"),
    },
    {"exchanges", "overlap"},
    {"memory", "clipping", "nonfinite"},
    {"gossip", "local"},
    {"make", "link_state", "transform"},
    {"optimizers"},
    {"sharded"},
    {"parallel", "marks"},
    {
        *("leaves", "restoring", "processes", "checkpoint", "checkpoint_arrays"),
        *(
            "checkpoint_folder",
            "regrouping",
            "resized_reading",
            "resizing",
            "resizing_rules",
        ),
    },
    {"wire"},
    {"cost", "shapes", "verdicts"},
    {"targets"},
    {"models"},
    {"data", "problems"},
    {"runs"},
    {"loggers"},
    {"report"},
    {"tasks"},
    {"study"},
    {"training"},
    {"convex"},
    {"sweeps", "prediction"},
    {"cli"},
    {"__init__", "__main__", "public"},
]
# Parts that import nothing else of jaxcomp, or only what is named here.
CLOSED: dict[str, set[str]] = {
    "launch": {"errors", "output", "progress_file"},
    "models": {"specs", "errors"},
    "data": {"specs", "errors", "files", "imported"},
    "problems": {"specs", "errors"},
    "report": {"errors", "files", "runs"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The row entry that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of jaxcomp that a file imports anywhere in it."""
    package = ["jaxcomp", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == "jaxcomp" and rest:
                found.add(rest[0])
    return found


def row(part: str) -> int:
    return next(i for i, members in enumerate(ROWS) if part in members)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upwards(path):
    part = part_of(path)
    used = imports(path) - {part}
    known = {name for members in ROWS for name in members}
    for name in used & known:
        assert row(name) <= row(part), f"{part} may not import {name}"
    if part in CLOSED:
        foreign = used & known - CLOSED[part]
        assert not foreign, f"{part} may not import {foreign}"


def _names(tree: ast.AST) -> list[str]:
    """Dotted names in code, those that `from jax.lax import psum` hides too."""
    names = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_names_stay_in_their_place(path):
    code = "\n".join(_names(ast.parse(path.read_text())))
    part = part_of(path)
    if part != "parallel":
        assert not re.search(r"\bjax\.pmap\b", code)
    if part in {
        "compressors",
        "scope",
        "memory",
        "coding",
        "trees",
        "base",
        "contracts",
    }:
        collectives = r"\blax\.(psum|pmean|all_gather|ppermute|all_to_all|axis_index)\b"
        assert not re.search(collectives, code)
    if part == "compressors":
        assert "optax" not in code


def test_the_library_needs_only_jax_and_optax():
    """`import jaxcomp` loads nothing of the extra `train`, which is there on demand."""
    program = """
import sys
import jaxcomp
heavy = {"flax", "orbax", "ml_collections", "tensorflow_datasets", "matplotlib", "rich",
         "jinja2", "sklearn"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert jaxcomp.models.make("tiny", num_classes=3) is not None
assert "flax" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_checks_can_fail():
    """The reader of imports sees absolute, relative and nested ones."""
    here = PACKAGE / "training" / "build.py"
    assert {"tasks", "make", "parallel", "runs"} <= imports(here)
    hidden = "from jax.lax import psum\nfrom jax import pmap"
    assert _names(ast.parse(hidden)) == ["jax.lax.psum", "jax.pmap"]
    assert "dataset" not in imports(PACKAGE / "data" / "__init__.py")
