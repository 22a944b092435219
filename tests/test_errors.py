"""What a person can mend is one line; a fault of the program keeps its traceback."""

from typing import Annotated, Literal

import pytest

from jaxcomp import CheckpointError, SpecError, UserError, training
from jaxcomp.cli import train
from jaxcomp.convex import NotConverged
from jaxcomp.core.specs import Call, Range, build, check
from jaxcomp.data import DataError
from jaxcomp.runs.folder import RunError
from tests.training.small import small_config

WRONG = [UserError, SpecError, RunError]
FAILED = [DataError, CheckpointError, training.NonFinite, NotConverged]


@pytest.mark.parametrize("kind", [*WRONG, *FAILED])
def test_commands_end_with_one_line(kind, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise kind("what is wrong")

    monkeypatch.setattr(training, "train_and_evaluate", fail)
    code = train.run(small_config(), str(tmp_path))
    assert code == (2 if kind in WRONG else 1)
    assert capsys.readouterr().err == "train.py: what is wrong\n"


@pytest.mark.parametrize("kind", [TypeError, ValueError, KeyError])
def test_a_fault_keeps_its_traceback(kind, tmp_path, monkeypatch):
    def fail(*_):
        raise kind("a fault")

    monkeypatch.setattr(training, "train_and_evaluate", fail)
    with pytest.raises(kind, match="a fault"):
        train.run(small_config(), str(tmp_path))


@pytest.mark.parametrize("kind", [TypeError, ValueError])
def test_a_factorys_own_fault_is_nobody_elses(kind):
    def broken(size: int = 1):
        raise kind("a fault")

    with pytest.raises(kind, match="^a fault$") as error:
        build("broken(size=2)", {"broken": broken}, "thing")
    assert not isinstance(error.value, UserError)
    with pytest.raises(SpecError, match="size is a whole number, not 1.5"):
        build("broken(size=1.5)", {"broken": broken}, "thing")


SMALL = Annotated[int, Range(1, 8)]


@pytest.mark.parametrize(
    ("annotation", "good", "bad", "says"),
    [
        (bool, [True, False], [0, 1, "True", None], "True or False"),
        (int, [0, -3], [True, 1.0, "1", None], "a whole number"),
        (float, [0, 1.5], [True, "1", float("nan"), float("inf")], "a number"),
        (SMALL, [1, 8], [0, 9, 2.0], "a whole number from 1 to 8"),
        (SMALL | None, [None, 3], [0, "x"], "a whole number from 1 to 8 or None"),
        (Annotated[float, Range(above=0)], [1e-9], [0, -1], "a number above 0"),
        (Annotated[float, Range(0, below=1)], [0], [1], r"a number in \[0, 1\)"),
        (Literal["a", "bee"], ["a"], ["be", 1, None], "one of a, bee"),
        (Literal[4, 8], [4, 8], [True, 4.0, 5], "4 or 8"),
        (float | Literal["tuned"], [2, "tuned"], ["x"], "a number or 'tuned'"),
        (str | Call, ["x"], [3], "a string or a spec"),
        (tuple[int, ...] | list[int], [(1,), [2]], [], ""),
    ],
)
def test_annotations_say_what_is_valid(annotation, good, bad, says):
    for value in good:
        check(annotation, "it", value)
    for value in bad:
        with pytest.raises(SpecError, match=f"it is {says}.*, not "):
            check(annotation, "it", value)
