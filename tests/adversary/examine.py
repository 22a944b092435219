"""The laws of a program, by its kind; and the smallest program that breaks one."""

import time
from collections.abc import Callable

from tests.adversary.draw import Program, simpler
from tests.adversary.exchanging import check_exchange
from tests.adversary.verdicts import Laws, Refused, Verdict, tried

__all__ = ["examine", "smallest"]

CHECKS: dict[str, Callable[[Program, Laws], None]] = {"exchange": check_exchange}
SECONDS = 60.0  # of looking for a smaller program


def examine(program: Program) -> Verdict:
    """Which laws a program breaks, if it is not refused."""

    def check(laws: Laws) -> None:
        if program.kind not in CHECKS:
            raise Refused(program.kind)
        CHECKS[program.kind](program, laws)

    return tried(check)


def smallest(program: Program, law: str) -> Program:
    """A program with less in it that breaks the law too."""
    until = time.monotonic() + SECONDS
    found = True
    while found:
        found = False
        for less in simpler(program):
            if time.monotonic() > until:
                return program
            if law in dict(examine(less).broken):
                program, found = less, True
                break
    return program
