"""The programs in examples/: what they change, and that they train, each by itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.__main__ import NAMES, changed_lines, difference

ROOT = Path(__file__).resolve().parent.parent
YOUR_LOOP = (ROOT / "docs" / "your-loop.md").read_text()
MOST = 5


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_differ_from_the_uncompressed_program(name):
    """The document shows the count, and `python -m examples` the lines."""
    count = changed_lines(name)
    print(f"{name}: {count} lines\n{difference(name)}")
    assert 0 < count <= MOST
    assert re.search(rf"`{name}` .*\| {count} \|", YOUR_LOOP), "docs/your-loop.md"


# The pages have programs under pmap and shard_map (test_docs.py), and models of other
# libraries are in test_data_parallel.py and test_transform.py.
QUICK = {"jit"}


OTHERS = pytest.mark.slow, pytest.mark.newest


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else OTHERS) for name in NAMES],
)
def test_it_trains_restores_to_the_bit_and_skips_a_bad_gradient(name, tmp_path):
    """In a process with a time limit: workers that wait for each other never end."""
    output = run("tests.example_run", name, tmp_path / "state")
    assert "restored to the bit" in output
    assert float(output.split("accuracy: ")[1]) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_ends_as_the_uncompressed_program_does(name):
    """As its first lines say: after 200 steps, within 4 points."""
    ours, theirs = (
        float(run(program).split("accuracy ")[-1].strip("%\n"))
        for program in (f"examples.{name}", f"examples.uncompressed.{name}")
    )
    print(f"{name}: {ours} %, uncompressed {theirs} %")
    assert ours > theirs - 4


def test_the_differences_are_shown():
    output = run("examples")
    assert [line for line in output.splitlines() if line.endswith(" lines")] == [
        f"{name}: {changed_lines(name)} lines" for name in NAMES
    ]
    with pytest.raises(subprocess.CalledProcessError):
        run("examples", "torch")


def run(module: str, *arguments: object) -> str:
    """Its output; on four devices, which some programs make by themselves."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    devices = {"XLA_FLAGS": flags, "NPROC": "8"}
    of_its_own = module == "tests.example_run"
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | ({} if of_its_own else devices),
        capture_output=True,
        text=True,
        timeout=200,
    )
    print(done.stdout, done.stderr)
    done.check_returncode()
    return done.stdout
