"""Claims of the documents on embedded data; minutes, so `slow`."""

import csv
import re
import shlex
import socket
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


def shown_commands() -> list[list[str]]:
    """The words after `python` of each training on embedded data that is shown."""
    files = ["README.md", "docs/training.md", "docs/cluster.md", "train.py"]
    texts = [(ROOT / file).read_text() for file in files]
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    found = [line.strip() for line in lines if line.startswith("    python train.py")]
    commands = [shlex.split(line, comments=True)[1:] for line in found]
    return [words for words in commands if "cifar" not in " ".join(words)]


SHOWN = shown_commands()
ALONE = [words for words in SHOWN if not any("--process" in word for word in words)]
TOGETHER = [words for words in SHOWN if words not in ALONE]


def into(words: list[str], folder: Path) -> list[str]:
    """The command with its run folder inside another one."""
    return [re.sub(r"^--workdir=runs", f"--workdir={folder}", word) for word in words]


def folder_of(words: list[str]) -> Path:
    [folder] = [w.removeprefix("--workdir=") for w in words if "--workdir=" in w]
    return Path(folder)


def has_learnt(folder: Path) -> None:
    """Digits above 95 %, a convex problem by a factor of a hundred."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    if "suboptimality" in rows[0]:
        first, last = (float(rows[i]["suboptimality"]) for i in (0, -1))
        assert last < first / 100, f"{folder.name}: from {first} to {last}"
        return
    assert float(rows[-1]["test_accuracy"]) > 0.95, f"{folder.name}: {rows[-1]}"


def test_every_training_that_is_shown_learns(tmp_path):
    """The documents' and --help's, one after the other, as a reader runs them."""
    assert len(ALONE) >= 7
    for words in ALONE:
        words = into(words, tmp_path)
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}\n{done.stderr}"
        if any("--evaluate" in word for word in words):
            accuracy = float(re.findall(r"accuracy ([\d.]+)%", done.stdout)[0])
            assert accuracy > 95, done.stdout
        has_learnt(folder_of(words))


def test_processes_that_are_shown_learn_together(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = str(probe.getsockname()[1])
    commands = [
        [word.replace("9911", free) for word in into(words, tmp_path)]
        for words in TOGETHER
    ]
    assert len(commands) == 2
    running = [subprocess.Popen([sys.executable, *c], cwd=ROOT) for c in commands]
    assert [process.wait() for process in running] == [0, 0]
    has_learnt(folder_of(commands[0]))


def test_diloco_sends_a_sixtieth_and_is_as_good_as_exact(tmp_path):
    """Per example: both see as many in a step. Mean of three seeds."""
    exact = ("--config.exchange=exact", "--config.memory=none")
    ends: dict[str, list[float]] = {"default": [], "diloco": []}
    for seed in range(3):
        for config, settings in (("default", exact), ("diloco", ())):
            folder = tmp_path / f"{config}{seed}"
            rows = table(folder, config, f"--config.seed={seed}", *settings)
            ends[config].append(float(rows[-1]["test_accuracy"]))
            if config == "diloco":
                assert float(rows[-1]["times_fewer"]) >= 60
    print(ends)
    assert np.mean(ends["diloco"]) > np.mean(ends["default"]) - 0.01


def test_choco_needs_a_twentieth_of_the_bytes_on_a_convex_problem(tmp_path):
    """One per cent of top-k on a ring of 9, against whole models on the same ring."""
    sent = {}
    for config in ("d_psgd", "choco_top_k"):
        rows = table(tmp_path / config, f"convex/{config}")
        reached = [r for r in rows if float(r["ema_suboptimality"]) <= 1e-3]
        sent[config] = float(reached[0]["bytes_left"])
    print(sent)
    assert sent["d_psgd"] >= 20 * sent["choco_top_k"]
