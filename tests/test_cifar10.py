"""Claims of the README on real data: half an hour each on two cores, so `slow`."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT.parent / "shared" / "tools" / "cifar10_binary.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not TOOL.exists(),
        reason="needs the CIFAR-10 folder ../shared beside the project",
    ),
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """CIFAR-10, prepared by the product's own command from the original archive."""
    raw, prepared = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("prepared")
    subprocess.run([sys.executable, TOOL, raw], check=True)
    prepare = [sys.executable, "-m", "jaxcomp", "data", "prepare", "cifar10"]
    archive = f"--archive={raw / 'cifar-10-binary.tar.gz'}"
    subprocess.run([*prepare, archive, f"--data-dir={prepared}"], check=True)
    return prepared


def last_row(
    folder: Path, data_dir: Path, *settings: str, config: str = "cifar10"
) -> dict[str, str]:
    command = [sys.executable, "train.py", f"--config=configs/{config}.py"]
    subprocess.run(
        [*command, f"--workdir={folder}", *settings],
        cwd=ROOT,
        env={**os.environ, "JAXCOMP_DATA_DIR": str(data_dir)},
        check=True,
    )
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))[-1]


def test_top_k_is_as_good_as_exact_after_five_epochs(data_dir, tmp_path):
    exact = last_row(tmp_path / "exact", data_dir, "--config.exchange=exact")
    top_k = last_row(tmp_path / "top_k", data_dir)
    for name, row in (("exact", exact), ("top_k", top_k)):
        rate = float(row["examples"]) / float(row["seconds"])
        print(
            f"{name}: accuracy {float(row['test_accuracy']):.4f}, {rate:.0f} images/s, "
            f"{row['wire_bytes_per_step']} bytes a step"
        )
    assert float(top_k["test_accuracy"]) > float(exact["test_accuracy"]) - 0.015
    assert float(top_k["times_fewer"]) > 20


def test_signs_on_a_ring_are_as_good_as_exact_after_six_epochs(data_dir, tmp_path):
    """The mean model of CHOCO-SGD against one common model, 8 workers each."""
    exact = last_row(tmp_path / "exact", data_dir, config="cifar10_exact8")
    choco = last_row(tmp_path / "choco", data_dir, config="cifar10_choco")
    print(f"exact {exact['test_accuracy']}, choco {choco['test_accuracy']}")
    assert float(choco["test_accuracy"]) > float(exact["test_accuracy"]) - 0.03
    # To both neighbours, against one all-reduce in a ring of eight.
    assert float(choco["times_fewer"]) > 28 * (2 * 7 / 8) / 2
