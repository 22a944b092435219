"""Draw random programs, and see whether each is right or refused.

python -m tests.adversary --minutes 30     programs of the seeds from --seed on
python -m tests.adversary --draw SEED      the program of one seed
python -m tests.adversary --program LINE   the program of a line that was printed
"""

import argparse
import collections
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax

from jaxcomp import parallel
from tests import programs
from tests.adversary.draw import draw, line_of, program_of
from tests.adversary.examine import examine, smallest


def main() -> int:
    """Exit code 1 if a program is wrong."""
    parser = argparse.ArgumentParser(prog="tests.adversary", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--program", metavar="LINE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    ready()
    counts: Any = collections.Counter()
    checked: Any = collections.Counter()
    wrong: list[dict[str, Any]] = []
    began, seed = time.monotonic(), arguments.seed
    while True:
        program = draw(seed if arguments.draw is None else arguments.draw)
        if arguments.program:
            program = program_of(arguments.program)
        alone = arguments.draw is not None or arguments.program is not None
        verdict = examine(program)
        counts["drawn"] += 1
        counts[verdict.outcome] += 1
        checked.update(verdict.checked)
        if alone:
            print(line_of(program), verdict.outcome, verdict.why, sep="\n")
        if verdict.broken:
            law, what = verdict.broken[0]
            least = smallest(program, law)
            for law, what in verdict.broken:
                print(f"WRONG  seed {program.seed}: {law}: {what}")
            print(f"       {line_of(least)}", flush=True)
            laws = {law: what[:300] for law, what in verdict.broken}
            wrong.append({"seed": program.seed, "laws": laws, "least": line_of(least)})
        seconds = time.monotonic() - began
        if counts["drawn"] % 20 == 0:
            said = ", ".join(f"{n} {counts[n]}" for n in OUTCOMES)
            print(f"{seconds / 60:6.1f} min, seed {seed}: {said}", flush=True)
        if alone or seconds > 60 * arguments.minutes:
            break
        seed += 1
        programs.forget_when_many()
    table(counts, checked, wrong)
    if arguments.json:
        found = {**counts, "checked": checked, "found": wrong}
        arguments.json.write_text(json.dumps(found, indent=1))
    return int(bool(wrong))


OUTCOMES = ("drawn", "accepted", "refused", "wrong")


def ready() -> None:
    """Devices and strictness, as in the tests."""
    warnings.simplefilter("error")
    programs.compile_quickly()
    programs.collect_less_often()
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_traceback_filtering", "off")
    parallel.setup(workers=10)


def table(counts: Any, checked: Any, wrong: list[dict[str, Any]]) -> None:
    """What there was, and how often each law was looked at."""
    broken = collections.Counter(law for found in wrong for law in found["laws"])
    print(f"\n{'law':40} {'programs':>8} {'wrong':>6}")
    for law, count in sorted(checked.items()):
        print(f"{law:40} {count:8} {broken[law]:6}")
    print(", ".join(f"{name} {counts[name]}" for name in OUTCOMES))


if __name__ == "__main__":
    sys.exit(main())
