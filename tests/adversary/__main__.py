"""Draw random programs, and see whether each is right or refused.

python -m tests.adversary --minutes 30     programs of the seeds from --seed on
python -m tests.adversary --draw SEED      the program of one seed
python -m tests.adversary --program LINE   the program of a line that was printed
"""

import argparse
import collections
import itertools
import json
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel
from tests import programs
from tests.adversary.draw import Program, draw, line_of, program_of
from tests.adversary.examine import examine, smallest

OUTCOMES = ("drawn", "accepted", "refused", "wrong")


class Tally(NamedTuple):
    """What was found so far."""

    outcomes: collections.Counter[str]
    checked: collections.Counter[str]  # programs, by law
    broken: collections.Counter[str]
    wrong: list[dict[str, Any]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.outcomes[name]}" for name in OUTCOMES)


def main() -> int:
    """Exit code 1 if a program is wrong."""
    parser = argparse.ArgumentParser(
        prog="tests.adversary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--program", metavar="LINE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    ready()
    counters = (collections.Counter() for _ in range(3))
    tally = Tally(*counters, wrong=[])
    if arguments.program is not None:
        look_at(program_of(arguments.program), tally, alone=True)
    elif arguments.draw is not None:
        look_at(draw(arguments.draw), tally, alone=True)
    else:
        look_at_many(arguments.seed, arguments.minutes, tally)
    print_table(tally)
    if arguments.json:
        arguments.json.write_text(json.dumps(tally._asdict(), indent=1))
    return int(bool(tally.wrong))


def ready() -> None:
    """Devices and strictness, as in the tests."""
    warnings.simplefilter("error")
    programs.compile_quickly()
    programs.collect_less_often()
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_traceback_filtering", "off")
    parallel.setup(workers=10)


def look_at_many(first: int, minutes: float, tally: Tally) -> None:
    """The programs of all seeds from the first one on, until the time is over."""
    began = time.monotonic()
    for seed in itertools.count(first):
        look_at(draw(seed), tally)
        passed = (time.monotonic() - began) / 60
        if tally.outcomes["drawn"] % 20 == 0:
            laws = ", ".join(f"{law}: {n}" for law, n in tally.broken.items())
            print(f"{passed:6.1f} min, seed {seed}: {tally}. {laws}", flush=True)
        if passed > minutes:
            return
        programs.forget_when_many()


def look_at(program: Program, tally: Tally, alone: bool = False) -> None:
    """Examine a program; of a wrong one, print a line that can be pasted."""
    verdict = examine(program)
    tally.outcomes.update(["drawn", verdict.outcome])
    tally.checked.update(verdict.checked)
    tally.broken.update(law for law, _ in verdict.broken)
    if alone:
        print(line_of(program), verdict.outcome, verdict.why, sep="\n")
    for law, found in verdict.broken:
        print(f"WRONG  seed {program.seed}: {law}: {found[:300]}")
    if verdict.broken:
        least = line_of(smallest(program, verdict.broken[0][0]))
        print(f"       --program {shlex.quote(least)}", flush=True)
        laws = dict(verdict.broken)
        tally.wrong.append({"seed": program.seed, "laws": laws, "least": least})


def print_table(tally: Tally) -> None:
    print(f"\n{'law':40} {'programs':>8} {'wrong':>6}")
    for law, count in sorted(tally.checked.items()):
        print(f"{law:40} {count:8} {tally.broken[law]:6}")
    print(tally)


if __name__ == "__main__":
    sys.exit(main())
