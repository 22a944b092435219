"""What the C library does with memory that is freed."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomp.parallel import workers

SIZE = 64_000_000  # bytes, which glibc would return to the system when they are freed

# Of the module alone: a process that imports jax takes seconds.
PROGRAM = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pages", {str(Path(workers.__file__))!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def memory():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

kept, before = module.keep_pages({{}}) if sys.argv[1] == "keep" else None, memory()
block = b"x" * {SIZE}
del block
print(kept, memory() - before > {SIZE} / 2)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc has mallopt")
@pytest.mark.parametrize(
    ("how", "says"), [("keep", "True True"), ("plain", "None False")]
)
def test_what_is_freed_stays_with_the_process(how, says):
    words = [sys.executable, "-c", PROGRAM, how]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == says


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_ARENA_MAX"])
def test_an_allocator_that_is_chosen_stays(name):
    assert not workers.keep_pages({name: "1"})
