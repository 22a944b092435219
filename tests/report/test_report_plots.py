"""How a run ended, what its plots show, and how they are drawn."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.report import RunError, read_run, write_report
from jaxcomp.report.figures import (
    MANY,
    group_runs,
    layers,
    plots_of,
    points_of,
    time_of_a_step,
)
from jaxcomp.report.plot import Axis, Panel, Reference, Scale, Series, scales_of, ticks
from jaxcomp.report.run_folder import alarms, ending
from jaxcomp.report.svg import NARROW, Box, beside, draw_svg, spread_labels

MakeRun = Callable[..., Path]


def series(y: list[float], name: str = "a", slot: int = 0) -> Series:
    values = np.array(y, float)
    x = np.arange(1.0, values.size + 1)
    return Series(name, name, slot, x, values, values, values)


def panel(*curves: Series, log: bool = False, most: float = np.inf) -> Panel:
    y = Axis("loss", "number", log, most)
    return Panel(Axis("epoch", "count"), y, curves, (Reference(1.0, "nothing"),))


def test_a_diverged_run_looks_so(make_run: MakeRun) -> None:
    folder = make_run(epochs=2, config={"train_for": "2 epochs"})
    assert ending(read_run(folder)).kind == "finished"
    assert alarms(read_run(folder)) == []
    lines = (folder / "steps.csv").read_text().splitlines()
    rising = [
        re.sub(r"^(\d+),(\d+),[^,]*", rf"\1,\2,{1 + i}", line)
        for i, line in enumerate(lines[1:])
    ]
    (folder / "steps.csv").write_text("\n".join([lines[0], *rising, ""]))
    text = write_report(folder).read_text(encoding="utf-8")
    said = "This run diverged: the loss ended at 19.5, above the 1 with which it began."
    assert f'role="alert">{said}</p>' in text
    # Its axis ends where the other curves can still be told apart.
    loss = plots_of(group_runs([read_run(folder)]))["loss"].panels[0]
    assert scales_of(loss)[1].high < 10


def test_a_failed_run_says_why(make_run: MakeRun) -> None:
    folder = make_run(epochs=1)
    facts = json.loads((folder / "environment.json").read_text())
    facts["failed"] = "step 120: the loss is <nan>"
    (folder / "environment.json").write_text(json.dumps(facts))
    run = read_run(folder)
    assert ending(run).text == "failed: step 120: the loss is <nan>"
    page = write_report(folder).read_text(encoding="utf-8")
    assert (
        'role="alert">This run has failed: step 120: the loss is &lt;nan&gt;<' in page
    )


def test_an_unfinished_run_is_called_so(make_run: MakeRun) -> None:
    for words in ("7 epochs", "700 steps", "358400 examples"):
        folder = make_run(3, {"train_for": words}, words.replace(" ", "-"))
        assert ending(read_run(folder)).text == "unfinished: step 300 of 700"
    assert ending(read_run(make_run(3, {"train_for": "?"}, "q"))).kind == "finished"


def test_many_rows_become_means_with_a_band(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=100))
    found = points_of([run], "loss", "steps")
    assert found.value.size == MANY
    assert found.step[-1] == 10_000
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    among_others = points_of([run], "loss", "steps", alone=False)
    assert among_others.value.size < MANY
    np.testing.assert_array_equal(among_others.low, among_others.value)


def test_curves_lie_over_epochs_seconds_and_bytes(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=2))
    found = points_of([run], "test_loss")
    assert found.across["epoch"].tolist() == [1, 2]
    assert found.across["seconds"].tolist() == [12.5, 25]
    assert found.across["bytes"].tolist() == [6_540_000, 13_080_000]
    logged = points_of([run], "loss", "steps").across
    assert logged["epoch"][:2].tolist() == [0.1, 0.2]
    # Rows after the last epoch go on as in it.
    stopped = run._replace(metrics={k: v[:1] for k, v in run.metrics.items()})
    assert points_of([stopped], "loss", "steps").across["epoch"][-1] == 2


def test_sending_nothing_is_a_line_at_one(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=2))
    plot = plots_of(group_runs([run]))["compression"]
    [error] = [p for p in plot.panels if p.y.title == "gradient error"]
    assert Reference(1.0, "sending nothing") in error.references
    assert "|sent − given|² / |given|²" in plot.caption
    assert "sending nothing</text>" in draw_svg(error)
    low, high = scales_of(error)[1][:2]
    assert low <= 0 < 1 < high


def test_the_breakdown_is_shown_where_it_was_measured(make_run: MakeRun) -> None:
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
    assert "compiled &lt;alone&gt;" in write_report(folder).read_text(encoding="utf-8")
    (folder / "breakdown.csv").write_text("part,ms,how\ndata,fast,timed\n")
    # A damaged extra table is said, and the rest of the page is there.
    with pytest.raises(RunError, match="breakdown.csv holds 'fast' as ms"):
        time_of_a_step(read_run(folder))
    page = write_report(folder).read_text(encoding="utf-8")
    assert "not shown: breakdown.csv holds &#39;fast&#39; as ms" in page
    assert 'id="loss"' in page


def test_the_layers_that_lose_most_come_first(make_run: MakeRun) -> None:
    folder = make_run(epochs=2)
    assert layers(read_run(folder)) is None
    rows = [
        "1,b,9,1,0.1",
        "2,conv/kernel,100,0.5,0.25",
        "2,head/bias,4,2,0.75",
        "2,c,1,,",
    ]
    head = "epoch,leaf,elements,gradient_norm,error"
    (folder / "layers.csv").write_text("\n".join([head, *rows, ""]))
    bars = layers(read_run(folder))
    assert bars
    assert [bar.label for bar in bars.rows] == ["head/bias", "conv/kernel", "c"]
    assert bars.rows[0].cells == ("4", "2")
    page = write_report(folder).read_text(encoding="utf-8")
    assert "in epoch 2: the gradient error" in page
    assert 'style="width: 75.00%"' in page


def test_no_label_is_cut_off() -> None:
    """Large numbers take as much room as they need, left and right."""
    large = series([1e-6, 123456.0, 987654.0], "a long label")
    svg = draw_svg(panel(large, series([3.0, 4.0, 5.0], "b", 1)))
    width = NARROW.width
    assert len(re.findall("<text", svg)) > 6
    for kind, x, anchor, text in re.findall(
        r'<text class="(.*?)"[^>]*? x="(.*?)" y=".*?" text-anchor="(.*?)">(.*?)<', svg
    ):
        room = 6.2 * len(text)
        left = float(x) - {"start": 0.0, "middle": room / 2, "end": room}[anchor]
        assert left >= -1, (kind, text)
        assert left + room <= width + 1, (kind, text)


@pytest.mark.parametrize(
    "y", [[0.5], [0.5] * 3, [0.0] * 2, [-1.0, 1.0], [1e-30, 1e30], [np.nan, 1.0]]
)
@pytest.mark.parametrize("log", [False, True])
def test_any_values_can_be_drawn(y: list[float], log: bool) -> None:
    drawn = draw_svg(panel(series(y), log=log))
    assert drawn.startswith("<svg")
    assert not re.search(r"\b(nan|inf)\b", drawn)


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0, 1), (-3, 17), (0.001, 0.0042), (1e6, 9e6), (5, 5.1)):
        for unit in ("number", "bytes", "seconds", "percent"):
            scale = Scale(low, high)
            found = ticks(Axis("x", unit), scale, 6)
            assert 2 <= len(found) <= 7
            assert all(low <= value <= high for value in found)
    for low, high in ((1e-8, 1), (0.5, 3), (2, 2.1)):
        found = ticks(Axis("x", "number", log=True), Scale(low, high, log=True), 6)
        assert 1 <= len(found) <= 6
        assert all(low <= value <= high for value in found)


def test_labels_do_not_overlap() -> None:
    wanted = np.random.default_rng(0).uniform(0, 100, 6)
    found = np.sort(spread_labels(wanted.tolist(), 15, 0, 100))
    assert (np.diff(found) >= 15 - 1e-9).all()
    assert 0 <= found[0] <= found[-1] <= 100
    area, box = Box(0, 0, 200, 100), Box(0, 0, 60, 15)
    taken: list[Box] = []
    for at in ((190.0, 50.0), (185.0, 52.0), (10.0, 5.0), (12.0, 8.0)):
        place = beside(at, box, taken, area)
        assert not any(place.meets(other) for other in taken)
        taken.append(place)


def test_the_environment_table_is_about_the_environment(make_run: MakeRun) -> None:
    folder = make_run(epochs=1)
    facts = json.loads((folder / "environment.json").read_text())
    assert "command" in facts
    text = write_report(folder).read_text(encoding="utf-8")
    assert '<th scope="row">command</th>' not in text
