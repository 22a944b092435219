"""The notebooks are small, in sync, and define nothing; `make notebooks` runs them."""

import ast
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="needs the extra 'notebooks'")

FOLDER = Path(__file__).parent.parent / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def test_every_notebook_is_a_pair():
    books = sorted(FOLDER.glob("*.ipynb"))
    assert SCRIPTS
    assert [path.stem for path in books] == [path.stem for path in SCRIPTS]


@each_script
def test_pair_is_in_sync(script):
    book = script.with_suffix(".ipynb")
    assert cells(script) == cells(book), (
        f"run: jupytext --to ipynb --output {book} {script}"
    )


@each_script
def test_pair_names_its_formats_and_kernel(script):
    for path in (script, script.with_suffix(".ipynb")):
        metadata = jupytext.read(path).metadata
        assert metadata["jupytext"]["formats"] == "ipynb,py:percent"
        assert metadata["kernelspec"]["name"] == "python3"


@each_script
def test_notebook_has_no_outputs(script):
    for cell in jupytext.read(script.with_suffix(".ipynb")).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@each_script
def test_notebook_defines_nothing(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    found = [node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    assert found == []
