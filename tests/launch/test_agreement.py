"""An error of one process is one of all, also where the others are elsewhere."""

from types import SimpleNamespace

import pytest

from jaxcomp.core.errors import UserError
from jaxcomp.parallel import agreement
from jaxcomp.parallel.agreement import PeerFailed, on_all_processes
from jaxcomp.parallel.cluster import Silent

REFUSED = "2\nserver1\nno such folder"


@pytest.fixture
def others(monkeypatch):
    """Makes this process one of two; the function says what the other one does."""
    told: list[str] = []

    def do(answer: dict[int, str] | Exception) -> list[str]:
        def texts_of_all(text: str, seconds: float) -> dict[int, str]:
            told.append(text)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(agreement, "texts_of_all", texts_of_all)
        return told

    fake = SimpleNamespace(process_count=lambda: 2)
    monkeypatch.setattr(agreement, "jax", fake)
    return do


def refuse():
    raise UserError("no room")


def test_all_go_on_where_none_has_failed(others):
    told = others({})
    assert on_all_processes(lambda: 3) == 3
    assert told == [""]


def test_the_error_of_another_is_told_with_its_exit_code(others):
    others({1: REFUSED})
    with pytest.raises(
        PeerFailed, match="process 1 on server1: no such folder"
    ) as info:
        on_all_processes(lambda: 3)
    assert info.value.exit_code == 2


def test_who_failed_raises_its_own_error_though_the_others_do_not_come(others):
    told = others(Silent("nobody came", {0: "2\nhere\nno room"}))
    with pytest.raises(UserError, match=r"^no room$"):
        on_all_processes(refuse)
    assert told[0].startswith("2\n")
    assert told[0].endswith("\nno room")


def test_who_comes_too_late_still_hears_why(others):
    others(Silent("nobody came", {1: REFUSED}))
    with pytest.raises(PeerFailed, match="process 1 on server1: no such folder"):
        on_all_processes(lambda: 3)


def test_silence_without_a_reason_is_told_as_it_is(others):
    others(Silent("process 0 of 2 has lost others", {}))
    with pytest.raises(Silent, match="has lost others"):
        on_all_processes(lambda: 3)
