"""Claims of the documents on embedded data; minutes, so `slow`."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def table(folder: Path, config: str, *settings: str) -> list[dict[str, str]]:
    """The rows of metrics.csv of a run of a committed config."""
    command = [sys.executable, "train.py", f"--config=configs/{config}.py"]
    subprocess.run(
        [*command, f"--workdir={folder}", *settings],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_diloco_sends_a_hundredth_and_is_as_good_as_exact(tmp_path):
    """Per example: both see as many in a step. Mean of three seeds."""
    exact = ("--config.exchange=exact", "--config.memory=none")
    ends: dict[str, list[float]] = {"default": [], "diloco": []}
    for seed in range(3):
        for config, settings in (("default", exact), ("diloco", ())):
            folder = tmp_path / f"{config}{seed}"
            rows = table(folder, config, f"--config.seed={seed}", *settings)
            ends[config].append(float(rows[-1]["test_accuracy"]))
            if config == "diloco":
                sent = np.mean([float(row["wire_bytes_per_step"]) for row in rows])
                assert sent <= float(rows[-1]["dense_bytes_per_step"]) / 100
    print(ends)
    assert np.mean(ends["diloco"]) > np.mean(ends["default"]) - 0.01


def test_choco_needs_a_twentieth_of_the_bytes_on_a_convex_problem(tmp_path):
    """One per cent of top-k on a ring of 9, against whole models on the same ring."""
    once = "--config.seeds=1"
    sent = {}
    for config in ("d_psgd", "choco_top_k"):
        rows = table(tmp_path / config, f"convex/{config}", once)
        reached = [r for r in rows if float(r["suboptimality"]) <= 1e-3]
        sent[config] = float(reached[0]["bytes_sent"])
    print(sent)
    assert sent["d_psgd"] >= 20 * sent["choco_top_k"]
