"""Compare with what is committed: python -m tests.frozen [--write] [PART ...].

A difference is a fault, or it has a line in CHANGELOG.md with its reason and is written
by --write. Programs are compared as hashes of their StableHLO, without the names of
functions and places in files, and hold for the pinned version of jax alone.
"""

import json
import os
import sys
from pathlib import Path

FILE = Path(__file__).with_name("facts.json")


def main(words: list[str]) -> int:
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    from tests.frozen.facts import PARTS

    write = "--write" in words
    parts = [w for w in words if w != "--write"] or list(PARTS)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    wrong = 0
    for part in parts:
        found = json.loads(json.dumps(PARTS[part]()))
        if write:
            known[part] = found
            continue
        for path, old, new in differences(known.get(part), found, part):
            wrong += 1
            print(f"{path}: {old} -> {new}")
    if write:
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(f"{wrong} differences in {', '.join(parts)}")
    return wrong > 0


def differences(old, new, path=""):
    """(path, old, new) of what differs.

    Example:
      >>> list(differences({"a": [1, 2]}, {"a": [1, 3]}))
      [('.a.1', 2, 3)]
    """
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            there = f"{path}.{key}"
            yield from differences(old.get(key), new.get(key), there)
    elif old != new:
        yield path, old, new


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
