"""The laws of a program, by its kind; and the smallest program that breaks one."""

import time
from collections.abc import Callable

from tests.adversary.compressing import check_compressor
from tests.adversary.draw import Program, simpler
from tests.adversary.exchanging import check_exchange
from tests.adversary.mixing import check_mixer
from tests.adversary.training import check_optimizer
from tests.adversary.verdicts import Laws, Verdict, tried

__all__ = ["examine", "smallest"]

CHECKS: dict[str, Callable[[Program, Laws], None]] = {
    "compressor": check_compressor,
    "exchange": check_exchange,
    "mixer": check_mixer,
    "optimizer": check_optimizer,
}
SECONDS = 60.0  # of looking for a smaller program


def examine(program: Program) -> Verdict:
    """Which laws a program breaks, if it is not refused."""

    return tried(lambda laws: CHECKS[program.kind](program, laws))


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
