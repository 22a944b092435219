"""Make each fault in a copy of the project, and see which test notices it."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info"
)
PYTEST = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]


def main() -> None:
    """Exit code 1 if a fault passes the whole default suite."""
    parser = argparse.ArgumentParser(prog="tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults whose names begin so")
    parser.add_argument("--list", action="store_true", help="show them and stop")
    arguments = parser.parse_args()
    beginnings = tuple(arguments.names) or ("",)
    faults = [f for f in FAULTS if f.name.startswith(beginnings)]
    if not faults:
        parser.error(f"no fault begins with any of {arguments.names}; see --list")
    if arguments.list:
        print(*(f"{f.name}: {f.file}" for f in faults), sep="\n")
        return
    if failed := first_failure(None, sorted({fault.near for fault in faults})):
        raise SystemExit(f"without any fault {failed} fails: nothing could be told")
    missed = [fault for fault in faults if not _report(fault)]
    print(f"{len(faults) - len(missed)} of {len(faults)} faults are noticed")
    sys.exit(bool(missed))


def _report(fault: Fault) -> str | None:
    """The test that notices a fault, those near it first; None if none does."""
    began = time.monotonic()
    noticed = first_failure(fault, [fault.near])
    noticed = noticed or first_failure(fault, ["-n2", "--dist=worksteal"])
    seconds = time.monotonic() - began
    print(f"{seconds:5.0f} s  {fault.name}: {noticed or 'NOT NOTICED'}", flush=True)
    return noticed


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What a copy does without: also people's runs, which are no part of a package."""
    people = {"runs"} if Path(folder) == ROOT else set()
    return LEFT_OUT(folder, names) | people


def first_failure(fault: Fault | None, tests: list[str]) -> str | None:
    """The first test that fails in a copy of the project with a fault, if one does."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "project"
        shutil.copytree(ROOT, copy, ignore=_left_out)
        # Programs that the fault leaves alone are read.
        programs = ROOT / ".pytest_cache"
        programs.mkdir(exist_ok=True)
        (copy / ".pytest_cache").symlink_to(programs)
        if fault:
            _make(fault, copy)
        done = subprocess.run(
            [*PYTEST, *tests], cwd=copy, capture_output=True, text=True
        )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        raise SystemExit(done.stdout + done.stderr)
    return failed[0] if failed else None


def _make(fault: Fault, copy: Path) -> None:
    file = copy / fault.file
    text = file.read_text()
    if text.count(fault.right) != 1:
        raise SystemExit(f"{fault.file} no longer has: {fault.right}")
    file.write_text(text.replace(fault.right, fault.wrong))


if __name__ == "__main__":
    main()
