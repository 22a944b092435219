"""What each module of tests costs, shown at the end of a run.

A slow test is seen in the run in which it is written.
"""

from collections import Counter
from typing import Any

import pytest

SHOWN = 10  # modules, and single tests
SLOW = 5.0  # seconds


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Seconds of the most expensive modules, and of single tests that take long."""
    modules, tests = Counter[str](), Counter[str]()
    for report in _reports(terminalreporter):
        modules[report.nodeid.split("::")[0]] += report.duration  # type: ignore[index]
        tests[report.nodeid] += report.duration  # type: ignore[index]
    if not tests or sum(tests.values()) < SLOW:
        return
    write = terminalreporter.write_line
    terminalreporter.section(f"{sum(tests.values()):.0f} s of tests")
    for name, seconds in modules.most_common(SHOWN):
        count = sum(test.startswith(f"{name}::") for test in tests)
        write(f"{seconds:6.1f} s  {name}, {count} tests")
    slow = [(t, s) for t, s in tests.most_common(SHOWN) if s > SLOW]
    if slow:
        write(f"Above {SLOW:g} s:")
    for name, seconds in slow:
        write(f"{seconds:6.1f} s  {name}")


def _reports(terminalreporter: Any) -> list[pytest.TestReport]:
    """Set-up, call and tear-down of every test that ran, on whichever worker."""
    stats = terminalreporter.stats.values()
    reports = [report for group in stats for report in group]
    return [r for r in reports if isinstance(r, pytest.TestReport)]
