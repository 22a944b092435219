"""The page: complete, self-contained, escaped and written in one step."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jaxcomp.core.units import percent_text
from jaxcomp.report import read_run, write_report
from jaxcomp.report.run_page import render_run

MakeRun = Callable[..., Path]


class Page(HTMLParser):
    """Collects the ids, references, tags and headline numbers of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: Counter[str] = Counter()
        self.plots = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.plots += ("role", "img") in attrs
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "xlink:href", "src", "action"):
                self.links.append(value or "")


def headline(page: str) -> dict[str, tuple[str, str]]:
    cards = re.findall(
        r'<dt>(.*?)</dt><dd class="value">(.*?)</dd><dd class="note">(.*?)</dd>', page
    )
    return {name: (value, note) for name, value, note in cards}


def figures(page: str) -> list[str]:
    """The names of the plots of a page."""
    return re.findall(r'<figure class="card[^"]*" id="([^"]*)"', page)


def test_headline_holds_the_numbers(make_run: MakeRun) -> None:
    folder = make_run(epochs=3)
    table = (folder / "metrics.csv").read_text().splitlines()
    names = table[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in table[1:]]
    # Epoch 3 was not evaluated, and its messages were half as large as the others'.
    accuracies, sent = ("0.5", "0.4375", ""), ("1000", "1000", "500")
    for row, accuracy, wire in zip(rows, accuracies, sent, strict=True):
        row |= {"test_accuracy": accuracy, "wire_bytes_per_step": wire}
        row |= {"bytes_left": "375000", "exact_bytes_left": "9000000"}
    lines = [table[0], *(",".join(row.values()) for row in rows)]
    (folder / "metrics.csv").write_text("".join(f"{line}\n" for line in lines))
    assert headline(write_report(folder).read_text(encoding="utf-8")) == {
        "final test accuracy": ("43.75 %", "epoch 2"),
        "best test accuracy": ("50.00 %", "epoch 1"),
        # 100 steps of 1000, 1000 and 500 bytes: 250 kB in 300 steps.
        "message of a worker": ("833 B", "in the mean step"),
        "bytes saved": ("24×", "exact / this run"),
        "left a worker in total": ("375 kB", "with exact 9 MB"),
        # 3 epochs of 12.5 seconds.
        "training time": ("37.5 s", "without compiling; epochs: 3, steps: 300"),
        # Steps 10, 20, ... 300 log 4000 + step % 7, whose median is 4003.
        "images per second": ("4,003", "all workers together"),
    }


def test_page_names_run_config_environment_and_command(make_run: MakeRun) -> None:
    page = write_report(make_run(epochs=2)).read_text(encoding="utf-8")
    title = "top_k(keep=0.01) · error_feedback · gather, 4 workers, resnet20 on cifar10"
    assert f"<h1>{title}</h1>" in page
    assert '<th scope="row">optimizer.nesterov</th><td>true</td>' in page
    assert '<th scope="row">versions.jax</th><td>0.10.0</td>' in page
    command = "python train.py --config=configs/cifar10.py &#39;--note=a b&#39;"
    assert f"<code>{command}</code>" in page


def test_the_title_names_what_the_task_says_was_trained(make_run: MakeRun) -> None:
    """The config's model and dataset mean nothing to a task of somebody's own."""
    own = {"task": "my_package.tasks:text(length=9)"}
    folder = make_run(epochs=1, config=own)
    method = "top_k(keep=0.01) · error_feedback · gather, 4 workers"
    page = render_run(read_run(folder))
    assert f"<h1>{method}, my_package.tasks:text(length=9)</h1>" in page
    facts = {"model": "my_package.nets:lstm", "data": "letters"}
    (folder / "environment.json").write_text(json.dumps(facts))
    page = render_run(read_run(folder))
    assert f"<h1>{method}, my_package.nets:lstm on letters</h1>" in page


def test_page_needs_no_other_file(make_run: MakeRun) -> None:
    text = write_report(make_run(epochs=2)).read_text(encoding="utf-8")
    # The names of two XML dialects, which nobody asks for.
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert set(re.findall(r"https?://[^\"'\s<]*", text)) == names
    page = Page(text)
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert not page.tags.keys() & {"img", "iframe", "object", "form", "base"}
    assert page.tags["script"] == 1
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_every_plot_has_its_data_and_words(make_run: MakeRun) -> None:
    text = write_report(make_run(epochs=12)).read_text(encoding="utf-8")
    page = Page(text)
    assert figures(text) == ["accuracy", "loss", "compression", "time"]
    # Twelve panels, of which those of the loss have both scales.
    assert page.plots == 12 + 3
    assert [i for i, count in Counter(page.ids).items() if count > 1] == []
    tables = set(re.findall(r'data-table="([^"]*)"', text))
    assert tables == {i for i in page.ids if i[-1].isdigit()}
    assert re.search(
        r'aria-label="loss over epoch: train from 2\S* to \S*; test ', text
    )
    # Every logged step is a row of the table: 120, and the 12 epochs of the test set.
    table = text[text.index('id="loss-0"') :]
    assert table[: table.index("</table>")].count("<tr data-key") == 132


def test_loss_is_drawn_as_often_as_it_was_logged(make_run: MakeRun) -> None:
    text = write_report(make_run(epochs=2)).read_text(encoding="utf-8")
    table = text[text.index('id="loss-0"') :]
    rows = re.findall(r"<tr .*?</tr>", table[: table.index("</table>")])
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    # Step 10 is a tenth of epoch 1, of 12.5 s and of 100 steps of 65.4 kB.
    assert cells[0] == ["train", "0.1", "1.25 s", "654 kB", "2.271"]
    assert [row[0] for row in cells].count("train") == 20


def test_hostile_text_is_escaped(make_run: MakeRun) -> None:
    hostile = '</style><script>alert("1")</script>&"\'--><svg onload=x>'
    config = {"compressor": hostile, hostile: [hostile, 1], "topology": hostile}
    folder = make_run(epochs=1, config=config)
    graph = {"name": hostile, "workers": 2, "degree": 1, "spectral_gap": 1.0}
    graph |= {"layout": ["circle", 2], "rounds": [[[0, 1, 0.5], [1, 0, 0.5]]]}
    facts = {"command": ["<script>"], "started": "<script>", "graph": graph}
    (folder / "environment.json").write_text(json.dumps(facts))
    layers = f'epoch,leaf,elements,gradient_norm,error\n1,"{hostile[:16]}",9,1,0.5\n'
    (folder / "layers.csv").write_text(layers)
    text = write_report(folder).read_text(encoding="utf-8")
    assert text.count("<script") == 1
    assert "<svg onload" not in text
    assert "&lt;/style&gt;&lt;script&gt;alert(&#34;1&#34;)" in text
    assert text.count("</style>") == 1


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"test_accuracy": "", "test_loss": "", "residual_norm": "", "seconds": ""},
        {"wire_bytes_per_step": "", "dense_bytes_per_step": "", "train_loss": "nan"},
        {"wire_bytes_per_step": 1_090_000, "test_accuracy": 0.5, "residual_norm": 0},
        {"wire_bytes_per_step": 0, "gradient_error": "inf", "train_loss": 1e38},
        {"wire_bytes_per_step": 3_000_000, "test_accuracy": "", "train_accuracy": ""},
    ],
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_sparse_short_and_constant_runs(
    make_run: MakeRun, epochs: int, columns: dict[str, object]
) -> None:
    folder = make_run(epochs=epochs, **columns)
    (folder / "steps.csv").unlink()
    page = render_run(read_run(folder))
    assert "time" not in figures(page)
    assert not re.search(r"[>\s\"]nan\b", page.partition("<h2>Config</h2>")[0])
    assert len(headline(page)) == 7


def test_folder_with_metrics_only(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step\n1,10\n")
    (tmp_path / "steps.csv").write_text("step,step_seconds\n0,0.5\n")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f"<h1>{tmp_path.name}</h1>" in page
    assert "config.json is missing or cut off" in page
    assert headline(page)["final test accuracy"] == ("–", "not evaluated")


def test_another_measure_takes_the_place_of_accuracy(make_run: MakeRun) -> None:
    folder = make_run(epochs=2, test_perplexity=7.25, train_perplexity=8.5)
    facts = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(
        json.dumps({**facts, "measure": "perplexity"})
    )
    page = write_report(folder).read_text(encoding="utf-8")
    assert headline(page)["best test perplexity"] == ("7.25", "epoch 1")
    assert figures(page)[0] == "perplexity"
    assert "<td>7.25</td>" in page


def test_averaged_weights_have_a_column_where_there_are_some(make_run: MakeRun) -> None:
    page = write_report(make_run(epochs=2, name="plain")).read_text(encoding="utf-8")
    assert "averaged weights" not in page
    page = write_report(make_run(epochs=2, ema_accuracy=0.625)).read_text("utf-8")
    assert "averaged weights: accuracy" in page
    assert f"<td>{percent_text(0.625)}</td>" in page


def test_same_run_gives_same_page(make_run: MakeRun) -> None:
    folder = make_run(epochs=2)
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_an_ordinary_page_is_small(make_run: MakeRun) -> None:
    assert write_report(make_run(epochs=300)).stat().st_size < 500_000


def test_failed_write_keeps_the_old_page(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(epochs=1)
    (folder / "report.html").write_text("old")
    before = sorted(folder.iterdir())

    def fail(source: Path, target: Path) -> None:
        assert source.parent == target.parent == folder
        assert source.read_text(encoding="utf-8").endswith("</html>\n")
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"
    assert sorted(folder.iterdir()) == before
