"""Training on slow links and with many workers: what is made of the runs."""

import pytest

from benchmarks import simulated_workers, slow_training
from benchmarks.slow_training import Row

TABLE = """epoch,step,seconds,test_accuracy,bytes_left
1,11,2.5,0.25,792
2,22,4.75,0.5,1584
3,33,7.25,0.
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "light"
    made.mkdir()
    (made / "metrics.csv").write_text(TABLE.removesuffix("\n"))  # the last line is torn
    return made


def curve(run: str, seconds: float, accuracies: list[float]) -> list[Row]:
    return [
        Row(run, i, 5 * i, i * seconds, 1e6 * i, accuracy)
        for i, accuracy in enumerate(accuracies, start=1)
    ]


def test_the_epochs_of_a_run_are_read(folder):
    rows = slow_training.rows_of(folder)
    assert rows == [
        Row("light", 1, 11, 2.5, 792.0, 0.25),
        Row("light", 2, 22, 4.75, 1584.0, 0.5),
    ]


def test_runs_are_written_drawn_and_read_again(folder, tmp_path, capsys):
    rows = slow_training.main([str(folder), f"--out={tmp_path}"])
    assert "light: 50.00 % after 4.75 s and 1.58 kB" in capsys.readouterr().out
    assert slow_training.main([f"--out={tmp_path}"]) == rows
    assert (tmp_path / "slow_training.png").stat().st_size > 10_000


def test_who_is_at_the_accuracy_of_the_first_run():
    dense = curve("dense", 10.0, [0.5, 0.8, 0.9])
    light = curve("light", 2.0, [0.4, 0.9, 0.8])
    assert slow_training._line("light", light, dense).endswith(
        "at the 90.00 % at which dense ends after 4 s, 13 % of its time"
    )
    assert "not at the 90.00 %" in slow_training._line("light", light[:1], dense)


def test_without_runs_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(SystemExit, match="no run folders are given"):
        slow_training.main([f"--out={tmp_path}"])


def test_the_table_has_a_column_for_each_number_of_workers():
    rows = [
        simulated_workers.Row("exact", size, seed, 10, 400, 0.25 * seed, 0.9)
        for size in (16, 64)
        for seed in (1, 2)
    ]
    table = simulated_workers.table(rows).splitlines()
    assert table[0] == "| exchange | 16 workers | 64 workers |"
    assert table[2].startswith("| `exact` | 37.5 % (25.0 to 50.0); 400 B |")


@pytest.mark.slow
def test_workers_that_see_one_image_each_train(tmp_path):
    sizes = [f"--out={tmp_path}", "--workers", "256", "--train-for", "2 steps"]
    sizes += ["--seeds", "0"]
    rows = simulated_workers.main(sizes)
    assert [row.method for row in rows] == [m.title for m in simulated_workers.METHODS]
    exact, gather, two_phase = (row.nbytes for row in rows)
    assert exact > two_phase > gather > 0
