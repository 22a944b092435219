"""Make each fault in a copy of the project, and see which test notices it."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info")
PYTEST = [sys.executable, "-m", "pytest", "-qx", "-n2", "--dist=worksteal"]
PYTEST += ["-p", "no:cacheprovider"]


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
    missed = [fault for fault in faults if not _report(fault)]
    print(f"{len(faults) - len(missed)} of {len(faults)} faults are noticed")
    sys.exit(bool(missed))


def _report(fault: Fault) -> str | None:
    began = time.monotonic()
    noticed = noticed_by(fault)
    seconds = time.monotonic() - began
    print(f"{seconds:5.0f} s  {fault.name}: {noticed or 'NOT NOTICED'}", flush=True)
    return noticed


def noticed_by(fault: Fault) -> str | None:
    """The first test that fails, or None if the whole default suite passes."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "project"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        # Programs that the fault leaves alone are read.
        (copy / ".pytest_cache").symlink_to(ROOT / ".pytest_cache")
        broken = copy / fault.file
        text = broken.read_text()
        if text.count(fault.right) != 1:
            raise SystemExit(f"{fault.file} no longer has: {fault.right}")
        broken.write_text(text.replace(fault.right, fault.wrong))
        for tests in ([fault.near], []):
            done = subprocess.run(
                [*PYTEST, *tests], cwd=copy, capture_output=True, text=True
            )
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            if failed:
                return failed[0]
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
    return None


if __name__ == "__main__":
    main()
