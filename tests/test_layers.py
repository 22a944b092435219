"""Who may import whom, and who may name what: the plan of the house, checked."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomp

PACKAGE = Path(jaxcomp.__file__).parent
# Each room may import from rooms before it, and its own modules without a circle.
ROOMS = (
    *("core", "compressors", "scope", "parallel", "exchanges", "memory", "mixers"),
    *("transforms", "checkpoint", "wire"),
    *("models", "data", "convex", "runs", "report", "training", "study", "cli"),
)
LIBRARY = ROOMS[: ROOMS.index("wire") + 1]
# Rooms that import nothing else of jaxcomp, or only what is named here.
CLOSED: dict[str, set[str]] = {
    "models": {"core"},
    "data": {"core"},
    "convex": {"core"},
    "report": {"core", "runs"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """The dotted name of a file, with `__init__` for a package."""
    return ".".join(("jaxcomp", *path.relative_to(PACKAGE).with_suffix("").parts))


MODULES = {module_of(path).removesuffix(".__init__"): path for path in FILES}


def imports(path: Path) -> set[str]:
    """The modules of jaxcomp that a file imports anywhere in it."""
    package = module_of(path).split(".")[:-1]
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
            if name not in MODULES:
                name = name.rpartition(".")[0]
            if name in MODULES and name != "jaxcomp":
                found.add(name)
    return found


def room_of(module: str) -> str:
    """The room of a module of jaxcomp."""
    return module.split(".")[1]


ROOMED = [path for path in FILES if room_of(module_of(path)) in ROOMS]


def test_every_module_stands_in_a_room():
    others = {str(path.relative_to(PACKAGE)) for path in FILES if path not in ROOMED}
    assert others == {"__init__.py", "__main__.py", "_version.py"}


@pytest.mark.parametrize("path", ROOMED, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upwards(path):
    room = room_of(module_of(path))
    used = {room_of(module) for module in imports(path)} - {room, "_version"}
    for name in used:
        assert ROOMS.index(name) < ROOMS.index(room), f"{room} may not import {name}"
    if room in CLOSED:
        assert used <= CLOSED[room], f"{room} may not import {used - CLOSED[room]}"


def test_modules_of_a_room_import_each_other_without_a_circle():
    graph = {}
    for path in ROOMED:
        module = module_of(path).removesuffix(".__init__")
        inner = {m for m in imports(path) if room_of(m) == room_of(module)}
        # A package imports its modules, and they are found through it.
        graph[module] = {m for m in inner - {module} if not module.startswith(f"{m}.")}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


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
    part = str(path.relative_to(PACKAGE)).partition("/")[0]
    if part != "parallel":
        assert not re.search(r"\bjax\.pmap\b", code)
    if part in {"core", "compressors", "scope", "memory"}:
        collectives = r"\blax\.(psum|pmean|all_gather|ppermute|all_to_all|axis_index)\b"
        assert not re.search(collectives, code)
    if part == "compressors":
        assert "optax" not in code


def test_no_public_class_has_the_name_of_another():
    names = [
        node.name
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sorted(names) == sorted(set(names))


def test_the_library_needs_only_jax_and_optax():
    """`import jaxcomp` loads nothing of the extra `train`, which is there on demand.

    Nor does making an exchange load what mixes models.
    """
    program = """
import sys
import jaxcomp
heavy = {"flax", "orbax", "ml_collections", "tensorflow_datasets", "matplotlib", "rich",
         "jinja2", "sklearn"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
jaxcomp.make_exchange
loaded = [name for name in sys.modules if name.startswith("jaxcomp")]
assert len(loaded) <= 80, len(loaded)
assert not [name for name in loaded if "mixer" in name]
assert jaxcomp.models.make("tiny", num_classes=3) is not None
assert "flax" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_older_paths_are_the_same_modules():
    for old, new in vars(jaxcomp)["_MOVED"].items():
        older = importlib.import_module(f"jaxcomp.{old}")
        assert older is importlib.import_module(f"jaxcomp.{new}")
        assert older.__spec__ is not None
        assert older.__spec__.name == f"jaxcomp.{new}"
    topology = importlib.import_module("jaxcomp.gossip.topology")
    assert topology is importlib.import_module("jaxcomp.mixers.gossip.topology")
    assert jaxcomp.gossip.topology is topology.topology
    with pytest.raises(ModuleNotFoundError, match="gossip.nothing"):
        importlib.import_module("jaxcomp.gossip.nothing")
