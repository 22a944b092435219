"""The pages of the documentation site: their programs, figures and links."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomp
from jaxcomp import cost, exchanges
from jaxcomp.compressors import REGISTRY as COMPRESSORS
from jaxcomp.exchanges import REGISTRY as EXCHANGES
from jaxcomp.memory import REGISTRY as MEMORIES
from tests.test_docs import check_programs, first_cells, section

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CHOOSING = (DOCS / "choosing.md").read_text()
PEERS = (DOCS / "peers.md").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of the tables of a text, without heads; `a \\| b` is one cell."""
    lines = re.findall(r"^\| (.+?) ?\|$", text, re.MULTILINE)
    cut = [re.split(r"(?<!\\) \| ?", line) for line in lines]
    return [[cell.replace("\\|", "|").strip() for cell in line] for line in cut]


def test_the_quickstart_runs_and_prints_what_it_says():
    check_programs((DOCS / "quickstart.md").read_text(), prints=4)


def test_programs_of_the_other_pages_run_and_print_what_they_say():
    pages = ("index", "choosing", "faq", "peers", "notebooks")
    text = "\n".join((DOCS / f"{page}.md").read_text() for page in pages)
    check_programs(text, prints=6)


def test_figures_of_the_choice_are_those_that_were_measured():
    """Bits and error of each row, rounded to the digits that the page shows."""
    with open(DOCS / "measured" / "error.csv") as file:
        measured = {
            row["method"]: row
            for row in csv.DictReader(file)
            if row["data"] == "gradient, step 390"
        }
    shown = rows(section(CHOOSING, "How many bits"))
    shown = [row for row in shown if re.fullmatch(r"[\d.]+", row[0])]
    assert len(shown) >= 10
    for bits, method, error, memory in shown:
        # The file has the names that were built, with all arguments that are shown.
        call = method.strip("`")
        found = measured[call] if call in measured else measured[built(call)]
        assert float(bits) == pytest.approx(float(found["bits"]), rel=0.06), method
        assert float(error) == pytest.approx(float(found["error"]), rel=0.07), method
        unbiased = jaxcomp.make_compressor(call).unbiased
        assert memory == ("no" if unbiased else "yes"), method


def built(call: str) -> str:
    return jaxcomp.make_compressor(call).name


def test_accuracies_of_the_choice_are_those_of_the_results():
    results = (DOCS / "results.md").read_text()
    for _, accuracy, fewer in rows(section(CHOOSING, "How many bits"))[-5:]:
        assert accuracy in results
        assert fewer == "1" or fewer.removesuffix(" times") in results


def test_break_even_bandwidths_follow_from_their_rows():
    table = rows(section(CHOOSING, "First: do you need one?"))
    (_, base_ms, base_mb, _), *others = [r for r in table if re.match(r"\d", r[1])]
    link = 125e6

    def cost_of(ms: str, mb: str) -> cost.Cost:
        nbytes = float(mb) * 1e6
        return cost.Cost(nbytes / link, 0.0, float(ms) / 1e3, nbytes, 1)

    assert len(others) == 5
    for name, ms, mb, limit in others:
        found = cost.break_even(cost_of(ms, mb), cost_of(base_ms, base_mb), link)
        assert f"{8 * found / 1e9:.1f} Gbit/s" == limit, name


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


def test_the_front_page_counts_the_methods():
    """All but `none`, which is no method."""
    counts = [
        len({*family} - {"none"}) for family in (COMPRESSORS, EXCHANGES, MEMORIES)
    ]
    says = "**{} compressors, {} exchanges, {} memories".format(*counts)
    assert says in (DOCS / "index.md").read_text()


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
