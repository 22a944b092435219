"""The notebooks are pairs with fresh outputs; `make notebooks` runs them."""

import ast
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="needs the extra 'dev'")

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Its subject is a definition; all other notebooks take what they need from the library.
DEFINES = "05_your_own_compressor"

each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def code_cells(script):
    book = jupytext.read(script.with_suffix(".ipynb"))
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_every_notebook_is_a_pair():
    books = sorted(FOLDER.glob("*.ipynb"))
    assert SCRIPTS
    assert [path.stem for path in books] == [path.stem for path in SCRIPTS]


def test_notebooks_are_numbered_without_gaps():
    numbers = [int(path.stem.split("_")[0]) for path in SCRIPTS]
    assert numbers == [*range(1, len(SCRIPTS) + 1)]


@each_script
def test_pair_is_in_sync(script):
    """What is shown was made by the code that is shown."""
    book = script.with_suffix(".ipynb")
    assert cells(script) == cells(book), "run: make notebooks WRITE=yes"
    for path in (script, book):
        metadata = jupytext.read(path).metadata
        assert metadata["jupytext"]["formats"] == "ipynb,py:percent"
        assert metadata["kernelspec"]["name"] == "python3"


@each_script
def test_every_cell_was_run_in_order_and_shows_a_figure_but_no_warning(script):
    ran = [cell.execution_count for cell in code_cells(script)]
    assert ran == [*range(1, len(ran) + 1)], "run: make notebooks WRITE=yes"
    outputs = [output for cell in code_cells(script) for output in cell.outputs]
    assert "error" not in {output.output_type for output in outputs}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    written = [output.text for output in outputs if output.get("name") == "stderr"]
    assert written == []


@each_script
def test_notebook_ends_with_exercises_and_defines_nothing(script):
    texts = [source for kind, source in cells(script) if kind == "markdown"]
    assert "\n1. " in texts[-1].partition("## Exercises\n")[2]
    tree = ast.parse(script.read_text(encoding="utf-8"))
    found = [node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    assert found == [] or script.stem == DEFINES


@each_script
def test_outputs_show_no_path_of_the_machine(script):
    text = script.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert str(ROOT) not in text
    assert "site-packages" not in text
