"""The faults of `python -m tests.mutations` can still be made."""

from pathlib import Path

import pytest

from tests.mutations import FAULTS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_line(fault):
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.right) == 1
    file, _, test = fault.near.partition("::")
    assert f"def {test}" in (ROOT / file).read_text()
