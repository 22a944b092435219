"""The page: complete, self-contained, escaped and written in one step."""

import os
import re

import numpy as np
import pytest

from jaxcomp.mixers.gossip.topology import graph_facts
from jaxcomp.report import RunError, read_run, write_report
from jaxcomp.report.run_page import layers, render_run, time_of_a_step

GOSSIP = {
    **{"mixer": "choco(gamma=0.5)", "topology": "ring", "compressor": "sign"},
    **{"exchange": "", "memory": ""},
}
OWN = {"consensus_distance": 0.25, "own_accuracy": 0.75, "worst_accuracy": 0.5}
EXCHANGED = {"mixer": "", "topology": "", "partition": "dealt"}
METHOD = "top_k(keep=0.01) · error_feedback · gather, 4 workers"
TITLE = f"<h1>{METHOD}, resnet20 on cifar10</h1>"


def headline(page: str) -> dict[str, tuple[str, str]]:
    cards = re.findall(
        r'<dt>(.*?)</dt><dd class="value">(.*?)</dd><dd class="note">(.*?)</dd>', page
    )
    return {name: (value, note) for name, value, note in cards}


def figures(page: str) -> list[str]:
    """The names of the plots of a page."""
    return re.findall(r'<figure class="card[^"]*" id="([^"]*)"', page)


def written(folder) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def test_headline_holds_the_numbers(make_run):
    # Epoch 3 was not evaluated, and its messages were half as large as the others'.
    folder = make_run(
        epochs=3,
        test_accuracy=[0.5, 0.4375, ""],
        wire_bytes_per_step=[1000, 1000, 500],
        bytes_left=375000,
        exact_bytes_left=9000000,
    )
    assert headline(written(folder)) == {
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


def test_page_names_run_config_environment_and_command(make_run):
    page = written(make_run(epochs=2))
    assert TITLE in page
    assert '<th scope="row">optimizer.nesterov</th><td>true</td>' in page
    assert '<th scope="row">versions.jax</th><td>0.10.0</td>' in page
    assert '<th scope="row">command</th>' not in page  # it is about the environment
    command = "python train.py --config=configs/cifar10.py &#39;--note=a b&#39;"
    assert f"<code>{command}</code>" in page


def test_page_needs_no_other_file(make_run):
    text = written(make_run(epochs=2))
    # The names of two XML dialects, which nobody asks for.
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert set(re.findall(r"https?://[^\"'\s<]*", text)) == names
    links = re.findall(r"""\b(?:href|src|action)\s*=\s*["']?([^"' >]*)""", text)
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not re.search("<(img|iframe|object|form|base)", text)
    assert text.count("<script") == 1
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_every_plot_has_its_data_and_words(make_run):
    text = written(make_run(epochs=12))
    assert figures(text) == ["accuracy", "loss", "compression", "time"]
    # Twelve panels, of which those of the loss have both scales.
    assert text.count('role="img"') == 12 + 3
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len({*ids})
    tables = set(re.findall(r'data-table="([^"]*)"', text))
    assert tables == {i for i in ids if i[-1].isdigit()}
    assert re.search(
        r'aria-label="loss over epoch: train from 2\S* to \S*; test ', text
    )
    table = text[text.index('id="loss-0"') :]
    rows = re.findall(r"<tr data-key.*?</tr>", table[: table.index("</table>")])
    # Every logged step is a row of the table: 120, and the 12 epochs of the test set.
    assert len(rows) == 132
    # Step 10 is a tenth of epoch 1, of 12.5 s and of 100 steps of 65.4 kB.
    first = re.findall(r"<td>(.*?)</td>", rows[0])
    assert first == ["train", "0.1", "1.25 s", "654 kB", "2.271"]


def test_hostile_text_is_escaped(make_run):
    hostile = '</style><script>alert("1")</script>&"\'--><svg onload=x>'
    config = {"compressor": hostile, hostile: [hostile, 1], "topology": hostile}
    graph = {"name": hostile, "workers": 2, "degree": 1, "spectral_gap": 1.0}
    graph |= {"layout": ["circle", 2], "rounds": [[[0, 1, 0.5], [1, 0, 0.5]]]}
    facts = {"command": ["<script>"], "started": "<script>", "graph": graph}
    folder = make_run(1, config, facts=facts)
    layers = f'epoch,leaf,elements,gradient_norm,error\n1,"{hostile[:16]}",9,1,0.5\n'
    (folder / "layers.csv").write_text(layers)
    text = written(folder)
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
def test_sparse_short_and_constant_runs(make_run, epochs, columns):
    folder = make_run(epochs=epochs, **columns)
    (folder / "steps.csv").unlink()
    page = render_run(read_run(folder))
    assert "time" not in figures(page)
    assert not re.search(r"[>\s\"]nan\b", page.partition("<h2>Config</h2>")[0])
    assert len(headline(page)) == 7


def test_folder_with_metrics_only(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,step\n1,10\n")
    (tmp_path / "steps.csv").write_text("step,step_seconds\n0,0.5\n")
    page = written(tmp_path)
    assert f"<h1>{tmp_path.name}</h1>" in page
    assert "config.json is missing or cut off" in page
    assert headline(page)["final test accuracy"] == ("–", "not evaluated")


def test_another_measure_takes_the_place_of_accuracy(make_run):
    columns = {"test_perplexity": 7.25, "train_perplexity": 8.5}
    page = written(make_run(2, facts={"measure": "perplexity"}, **columns))
    assert headline(page)["best test perplexity"] == ("7.25", "epoch 1")
    assert figures(page)[0] == "perplexity"
    assert "<td>7.25</td>" in page


def test_averaged_weights_have_a_column_where_there_are_some(make_run):
    assert "averaged weights" not in written(make_run(epochs=2, name="plain"))
    page = written(make_run(epochs=2, ema_accuracy=0.625))
    assert "averaged weights: accuracy" in page
    assert "<td>62.50 %</td>" in page


def test_own_and_worst_accuracy_and_distance_are_shown(make_run):
    page = written(make_run(epochs=2, config=GOSSIP, **OWN))
    title = "choco(gamma=0.5) on ring · sign, 4 workers, resnet20 on cifar10"
    assert f"<h1>{title}</h1>" in page
    assert "mixed by choco(gamma=0.5) on ring</p>" in page
    numbers = headline(page)
    assert numbers["own test accuracy"] == ("75.00 %", "mean of the workers, epoch 2")
    assert numbers["worst own accuracy"] == ("50.00 %", "of one worker, epoch 2")
    assert numbers["consensus distance"] == ("0.25", "at the end")
    of_mean = {f"{kind} test accuracy of the mean model" for kind in ("final", "best")}
    assert of_mean < numbers.keys()
    table = page[page.index("<h2>Epochs</h2>") :]
    heads = {"own accuracy", "worst own accuracy", "consensus distance"}
    heads |= {"test accuracy of the mean model"}
    assert heads < set(re.findall('<th scope="col">(.*?)</th>', table))
    assert "<td>75.00 %</td><td>50.00 %</td>" in page
    assert "consensus" in figures(page)


@pytest.mark.parametrize(
    "columns", [{}, {"consensus_distance": "", "own_accuracy": ""}, {"unknown": 1}]
)
@pytest.mark.parametrize("config", [{}, EXCHANGED])
def test_one_common_model_reads_as_before(make_run, config, columns):
    page = written(make_run(epochs=2, config=config, **columns))
    assert len(headline(page)) == 7
    assert figures(page) == ["accuracy", "loss", "compression", "time"]
    for words in ("mean of the models", "own models", "of its own", "onsensus"):
        assert words not in page.partition("<h2>Config</h2>")[0]
    assert TITLE in page


def test_the_graph_is_drawn_from_what_the_run_recorded(make_run):
    facts = graph_facts("exponential(one_peer=True)", 4)
    page = written(make_run(1, GOSSIP, facts=facts, **OWN))
    assert page.count('<svg class="graph"') == 2
    assert "4 workers, degree 1, gap 1, weight 0.5." in page
    # It is drawn, and not also written out.
    assert "spectral_gap" not in page
    torn = {"graph": facts["graph"] | {"rounds": "torn"}}
    assert '<svg class="graph"' not in written(make_run(1, GOSSIP, "torn", torn))


def test_the_breakdown_is_shown_where_it_was_measured(make_run):
    folder = make_run(epochs=1)
    bars = time_of_a_step(read_run(folder))
    assert bars
    assert [bar.text for bar in bars.rows][2] == "9 ms"
    (folder / "breakdown.csv").write_text(
        "part,ms,how\ndata,1.5,timed\ncompress,4.5,compiled <alone>\nlast,3"
    )
    bars = time_of_a_step(read_run(folder))
    assert bars
    assert [(b.label, b.text, b.cells) for b in bars.rows] == [
        ("preparing the batch", "1.5 ms", ("25.00 %", "timed")),
        ("compressing", "4.5 ms", ("75.00 %", "compiled <alone>")),
    ]
    assert "compiled &lt;alone&gt;" in written(folder)
    (folder / "breakdown.csv").write_text("part,ms,how\ndata,fast,timed\n")
    # A damaged extra table is said, and the rest of the page is there.
    with pytest.raises(RunError, match="breakdown.csv holds 'fast' as ms"):
        time_of_a_step(read_run(folder))
    page = written(folder)
    assert "not shown: breakdown.csv holds &#39;fast&#39; as ms" in page
    assert 'id="loss"' in page


def test_the_layers_that_lose_most_come_first(make_run):
    folder = make_run(epochs=2)
    assert layers(read_run(folder)) is None
    rows = ["1,b,9,1,0.1", "2,conv/kernel,100,0.5,0.25", "2,head/bias,4,2,0.75"]
    head = "epoch,leaf,elements,gradient_norm,error"
    (folder / "layers.csv").write_text("\n".join([head, *rows, "2,c,1,,", ""]))
    bars = layers(read_run(folder))
    assert bars
    assert [bar.label for bar in bars.rows] == ["head/bias", "conv/kernel", "c"]
    assert bars.rows[0].cells == ("4", "2")
    assert np.isnan(bars.rows[2].value)
    page = written(folder)
    assert "in epoch 2: the gradient error" in page
    assert 'style="width: 75.00%"' in page


def test_same_run_gives_same_page_and_an_ordinary_one_is_small(make_run):
    folder = make_run(epochs=300)
    first = write_report(folder).read_bytes()
    assert len(first) < 500_000
    assert write_report(folder).read_bytes() == first


def test_failed_write_keeps_the_old_page(make_run, monkeypatch):
    folder = make_run(epochs=1)
    (folder / "report.html").write_text("old")
    before = sorted(folder.iterdir())

    def fail(source, target):
        assert source.parent == target.parent == folder
        assert source.read_text(encoding="utf-8").endswith("</html>\n")
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"
    assert sorted(folder.iterdir()) == before
