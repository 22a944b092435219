"""The pages of the documentation site: their programs, figures and links."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomp
from jaxcomp import exchanges
from jaxcomp.compressors import REGISTRY as COMPRESSORS
from jaxcomp.exchanges import REGISTRY as EXCHANGES
from jaxcomp.memory import REGISTRY as MEMORIES
from tests.test_docs import first_cells, section

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CHOOSING = (DOCS / "choosing.md").read_text()
PEERS = (DOCS / "peers.md").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of the tables of a text, without heads; `a \\| b` is one cell."""
    lines = re.findall(r"^\| (.+?) ?\|$", text, re.MULTILINE)
    cut = [re.split(r"(?<!\\) \| ?", line) for line in lines]
    return [[cell.replace("\\|", "|").strip() for cell in line] for line in cut]


def test_the_choice_of_bits_goes_from_few_to_many_and_says_who_needs_a_memory():
    shown = rows(section(CHOOSING, "How many bits"))
    shown = [row for row in shown if re.fullmatch(r"[\d.]+", row[0])]
    bits = [float(row[0]) for row in shown]
    assert len(bits) >= 10
    assert bits == sorted(bits)
    for _, method, _, memory in shown:
        unbiased = jaxcomp.make_compressor(method.strip("`")).unbiased
        assert memory == ("no" if unbiased else "yes"), method


def test_what_users_of_peers_are_told_to_write_can_be_built():
    ours = "\n".join(row[-1] for row in rows(PEERS))
    for spec in re.findall(r'compressor="([^"]+)"', ours):
        assert jaxcomp.make_compressor(spec), spec
    for spec in re.findall(r'exchange="([^"]+)"', ours):
        assert exchanges.make(spec, "sign"), spec
    for spec in re.findall(r'memory="([^"]+)"', ours):
        assert jaxcomp.make_exchange(compressor="sign", memory=spec), spec
    for call in re.findall(r"`(make_(?:exchange|mixer)\(.+?\))`", ours):
        assert eval(f"jaxcomp.{call}", {"jaxcomp": jaxcomp}), call
    for key in re.findall(r"--config\.(\w+)=", ours):
        assert f"config.{key} =" in (ROOT / "configs" / "default.py").read_text()


def test_the_site_has_every_page_and_notebook_once():
    listed = re.findall(
        r"^[\w./-]+$",
        "\n".join(
            re.findall(
                r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.S
            )
        ),
        re.MULTILINE,
    )
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    books = {f"../notebooks/{path.stem}" for path in ROOT.glob("notebooks/*.ipynb")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | books | {
        "api/index",
        "../CONTRIBUTING",
        "../CHANGELOG",
    }


def test_the_front_pages_count_the_methods():
    """All but those that leave everything as it is."""
    counts = [
        len({*family} - {"none", "exact", "simulated"})
        for family in (COMPRESSORS, EXCHANGES, MEMORIES)
    ]
    says = "**{} compressors, {} exchanges, {} memories,".format(*counts)
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert says in page.read_text()


def test_what_documents_import_is_in_the_reference():
    """But for methods that stand in the package, which may use what is private."""
    pages = "\n".join(path.read_text() for path in DOCS.glob("api/*.md"))
    listed = re.findall(r"<!-- api: ([\w.]+) -->", pages)  # and the modules below
    texts = [path.read_text() for path in DOCS.glob("*.md") if path.stem != "extend"]
    found = re.findall(r"^from (jaxcomp[\w.]*) import (.+)$", "\n".join(texts), re.M)
    names = {f"{module}.{name}" for module, each in found for name in each.split(", ")}
    known = {
        f"jaxcomp.{module.name}" for module in pkgutil.iter_modules(jaxcomp.__path__)
    }
    used = {module for module, _ in found} | names & known
    assert len(used) > 5
    covered = re.compile(rf"jaxcomp|({'|'.join(listed)})(\.[a-z]\w*)*")
    assert not [module for module in used if not covered.fullmatch(module)]


def test_the_gallery_has_every_notebook():
    cells = first_cells((DOCS / "notebooks.md").read_text())
    numbers = [int(cell) for cell in cells if cell.strip().isdigit()]
    assert numbers == [*range(1, len([*ROOT.glob("notebooks/*.ipynb")]) + 1)]


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_asks_nobody_for_anything(tmp_path):
    pytest.importorskip("sphinx", reason="needs the extra 'docs'")
    built = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"),
            *("-b", "html", "-c", "docs", "-d", str(tmp_path / "read")),
            *(".", str(tmp_path / "site")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert built.returncode == 0, built.stderr
    pages = [*(tmp_path / "site").rglob("*.html")]
    assert len(pages) > 40
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//"""
        r"""|<link[^>]+rel=["']?(?:stylesheet|preload|preconnect)[^>]+href=["']?https?:"""
    )
    for page in pages:
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    for sheet in (tmp_path / "site").rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"""(?:url\(|@import )["']?(?:https?:)?//""", text), sheet
