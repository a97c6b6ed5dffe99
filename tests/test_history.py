"""A history is the same whether it was looked at yet or not."""

from __future__ import annotations

import copy
import pickle

import pytest

from qframe.contracts import history
from qframe.contracts.history import History

MADE = History().started(1, "host", 2, 3.0).ended("error", "ValueError: bad", 4.5).refused()


def read() -> History:
    return History.from_json(MADE.to_json())


def test_what_was_read_is_what_was_written() -> None:
    assert read() == MADE
    assert hash(read()) == hash(MADE)
    assert repr(read()) == repr(MADE)
    assert pickle.loads(pickle.dumps(read())) == copy.deepcopy(read()) == MADE
    assert read().started(2, "host", 2, 4.0).without_last() == MADE


def test_what_an_earlier_version_wrote_has_no_time_of_its_end() -> None:
    text = '{"attempts":[[1,"host",2,3.0,"error","no"]],"exceptions":1,"releases":0,"refusals":0}'
    found = History.from_json(text)
    assert found == History().started(1, "host", 2, 3.0).ended("error", "no")
    assert found.attempts[0].ended_at is None
    assert found.to_json() == text


@pytest.mark.parametrize("text", [None, "", "no JSON", "[]", '{"attempts": 7}', '{"other": 1}'])
def test_what_is_none_is_empty(text: str | None) -> None:
    assert History.from_json(text) == History()


def test_nothing_is_decoded_that_nobody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def decode(text: str) -> History:
        calls.append(text)
        return MADE

    monkeypatch.setattr(history, "_read", decode)
    one = read()
    assert not calls
    assert (one.exceptions, one.refusals) == (1, 1)
    assert len(calls) == 1
    with pytest.raises(AttributeError):
        read().nothing  # type: ignore[attr-defined]  # noqa: B018
