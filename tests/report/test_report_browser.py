"""The pages in headless Chromium: they are drawn, fit, and ask nobody for anything."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxcomp.mixers.gossip.topology import graph_facts
from jaxcomp.report import write_comparison, write_report
from tests.report.browser import CHROMIUM, Browser, browser

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium on the path")

Make = Callable[..., Path]
GOSSIP = {"mixer": "choco(gamma=0.5)", "topology": "ring", "exchange": ""}
OWN = {"consensus_distance": 0.25, "own_accuracy": 0.75, "worst_accuracy": 0.5}
LONG = "top_k(keep=0.01) | qsgd(levels=7, bucket=512, norm='largest')"
# Elements that reach out of the window, but those in a part that scrolls by itself.
OUTSIDE = """[...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  const isOut = box.right > innerWidth + 1 || box.left < -1;
  return box.width && isOut && !e.closest(".scroll");
}).map((e) => `${e.tagName} ${e.getAttribute("class")} ${e.textContent.slice(0, 40)}`)
"""
# Tables of which a desktop shows a part.
CUT = """[...document.querySelectorAll(".scroll")].filter(
  (e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.slice(0, 99))"""
WIDTH = "document.documentElement.scrollWidth"
# The height of the smallest text of the plots that are seen, in pixels of the window.
SMALLEST = """Math.min(...[...document.querySelectorAll(".tile text")].map((e) => {
  const svg = e.ownerSVGElement, shown = svg.getBoundingClientRect().width;
  const size = parseFloat(getComputedStyle(e).fontSize);
  return shown ? size * shown / svg.viewBox.baseVal.width : 99;
}))"""
# Light areas: backgrounds whose three colours are all bright.
LIGHT = """[...document.querySelectorAll("body, body *:not(text)")].filter((e) => {
  const c = getComputedStyle(e), part = e.closest("svg") ? c.fill : c.backgroundColor;
  const [r, g, b, a = 1] = (part.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const box = e.getBoundingClientRect();
  return a && r > 200 && g > 200 && b > 200 && box.width * box.height > 2000;
}).map((e) => e.tagName)"""
SHOWN = """[...document.querySelectorAll(".tile > svg")].filter(
  (e) => e.getBoundingClientRect().width > 0).length"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def pages(make_run: Make, tmp_path: Path) -> dict[str, Path]:
    """A page of each kind, with the panels that it shows at a time."""
    gossip = make_run(30, GOSSIP, "gossip", graph_facts("torus", 16), **OWN)
    layers = (
        "epoch,leaf,elements,gradient_norm,error\n1,stage_1/block_2/kernel,9,1,0.5\n"
    )
    (gossip / "layers.csv").write_text(layers)
    runs = [
        make_run(
            20,
            {"compressor": name, "seed": seed, "workers": workers},
            f"{workers}-{seed}",
            test_accuracy=workers / 10 + seed / 100,
            wire_bytes_per_step=10**workers,
        )
        for workers, name in ((2, LONG), (3, LONG), (4, "sign"), (5, "sign"))
        for seed in (0, 1)
    ]
    return {
        "one": write_report(make_run(30)),
        "gossip": write_report(gossip),
        "eight": write_comparison(runs, tmp_path / "eight.html", note=f"why {LONG}?"),
    }


PANELS = {"one": 12, "gossip": 15, "eight": 13}


def test_pages_are_drawn_and_fit(chromium, pages):
    for name, page in pages.items():
        for width, dark in ((390, True), (1280, False)):
            opened = chromium.open(page, width, dark)
            assert opened.errors == []
            assert opened.requests == [page.resolve().as_uri()]
            assert chromium.run(SHOWN) == PANELS[name]
            assert chromium.run(WIDTH) <= width
            assert chromium.run(OUTSIDE) == []
            assert chromium.run(SMALLEST) > 10
            if dark:
                assert chromium.run(LIGHT) == []
        assert chromium.run(CUT) == []


def test_the_checks_can_fail(chromium, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        '<meta name="viewport" content="width=device-width"><body>'
        '<div style="background: white; width: 2000px">white and wide</div>'
        '<div class="tile"><svg viewBox="0 0 4000 100"><text>small</text></svg></div>'
        '<script src="https://example.org/x.js"></script><script>lost()</script>'
    )
    opened = chromium.open(page)
    assert any("lost is not defined" in error for error in opened.errors)
    assert "https://example.org/x.js" in opened.requests
    assert chromium.run(OUTSIDE)
    assert chromium.run(LIGHT)
    assert chromium.run(SMALLEST) < 10


def test_hover_and_keys_read_the_table(chromium, pages):
    chromium.open(pages["one"])
    chromium.run("document.querySelector('#loss .tile svg').focus()")
    cells = "[...document.querySelectorAll('#tip td')].map((cell) => cell.textContent)"
    tip = f"{cells}.filter(Boolean).join('|')"
    chromium.press("ArrowRight")
    assert chromium.run(tip).startswith("epoch 0.3|train|2.243 (2.215 – 2.271)|")
    for _ in range(2):
        chromium.press("ArrowRight")
    chromium.press("ArrowLeft")
    assert "train" in chromium.run(tip)
    assert "test" in chromium.run(tip)
    assert chromium.run("document.querySelectorAll('.cursor').length") == 1
    assert chromium.run("document.querySelectorAll('.spot').length") == 2
    chromium.press("Escape")
    assert chromium.run("document.getElementById('tip').hidden")
    box = chromium.run(
        "(() => { const b = document.querySelector('#accuracy .tile svg')"
        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    assert "%" in chromium.run(tip)


def test_values_stay_inside_their_box(chromium, pages):
    for width in (1280, 390):
        chromium.open(pages["eight"], width)
        chromium.run("document.querySelector('#loss .tile:last-child .first').focus()")
        chromium.press("ArrowLeft")
        outside = """(() => {
          const tip = document.getElementById("tip"), box = tip.getBoundingClientRect();
          return [...tip.querySelectorAll("td")].filter((cell) => {
            const own = cell.getBoundingClientRect();
            return own.right > Math.min(box.right, innerWidth) || own.left < box.left;
          }).length;
        })()"""
        assert not chromium.run("document.getElementById('tip').hidden")
        assert chromium.run(outside) == 0


def test_legend_scale_theme_and_sorting(chromium, pages):
    chromium.open(pages["eight"])
    hidden = "document.querySelectorAll('svg .off').length"
    key = "document.querySelector('#loss .legend button')"
    chromium.run(f"{key}.click()")
    assert chromium.run(hidden) > 0
    assert chromium.run(f"{key}.getAttribute('aria-pressed')") == "false"
    chromium.run(f"{key}.click()")
    assert chromium.run(hidden) == 0

    scale = "getComputedStyle(document.querySelector('#loss .second')).display"
    assert chromium.run(scale) == "none"
    chromium.run("document.querySelector('#loss .switch input').click()")
    assert chromium.run(scale) == "block"
    assert chromium.run(SHOWN) == PANELS["eight"]

    colour = "getComputedStyle(document.body).backgroundColor"
    light = chromium.run(colour)
    chromium.run("document.getElementById('theme').click()")
    assert chromium.run(colour) != light
    chromium.open(pages["eight"])  # the choice is kept
    assert chromium.run(colour) != light
    chromium.run("document.getElementById('theme').click()")
    assert chromium.run(colour) == light

    rows = "[...document.querySelectorAll('#best tbody tr')]"
    column = f"{rows}.map((row) => row.cells[7].innerText)"
    sort = "document.querySelectorAll('#best thead button')[7].click()"
    chromium.run(sort)  # of bytes: 10 kB is more than 1 MB only as text
    assert chromium.run(column) == ["200 kB", "2 MB", "20 MB", "200 MB"]
    chromium.run(sort)
    assert chromium.run(column) == ["200 MB", "20 MB", "2 MB", "200 kB"]


def test_without_script_the_page_is_complete(chromium, pages):
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened = chromium.open(pages["eight"])
        assert opened.errors == []
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
        assert chromium.run(SHOWN) == PANELS["eight"]
        assert chromium.run("document.getElementById('theme').hidden")
        assert chromium.run("document.querySelectorAll('#loss tbody tr').length") > 80
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
