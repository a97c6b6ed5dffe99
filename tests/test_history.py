"""A history is the same whether it was looked at yet or not."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from qframe.contracts import history
from qframe.contracts.history import History
from qframe.contracts.recording import Recording, SeenStack, UsedPoint

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


RECORDED = Recording(
    attempt=2,
    summary="killed by SIGKILL, 1.9 GB of 2 GB",
    log=("10:00:00.123 INFO app: read 1", "an emoji \U0001f600"),
    stacks=(SeenStack((0.3, 1.3), ("/app/import.py:88 handle",)),),
    curve=(UsedPoint(2.0, 900.0, 0.5), UsedPoint(1.0, 1900.0, 1.0)),
    memory_events={"oom_kill": 1},
    limit=2048.0,
)


def test_what_was_recorded_stays_with_the_history() -> None:
    whole = MADE.recorded(RECORDED)
    assert History.from_json(whole.to_json()).recording == RECORDED
    assert whole.recorded(None).recording == RECORDED
    assert hash(whole)
    assert whole.started(9, "b", 1, 4.0).recording == RECORDED
    assert '"recording"' not in MADE.to_json()


@pytest.mark.parametrize(
    "fields",
    [
        None, [], "x", {"summary": 7}, {"log": ["a"]},
        {"summary": "s", "log": [1, None], "stacks": [[1], [2, 3, 4], None], "curve": {"a": 1}},
        {"summary": "s", "curve": [[1, "x", 1e999]], "memory_events": [1], "limit": "much"},
        {"summary": "s", "stacks": [["", {}], [[None], [1]]], "attempt": [], "log": "abc"},
    ],
)  # fmt: skip
def test_a_malformed_recording_harms_no_history(fields: object) -> None:
    text = json.dumps({**json.loads(MADE.to_json()), "recording": fields})
    found = History.from_json(text)
    assert found.attempts == MADE.attempts
    assert History.from_json(found.to_json()).recording == found.recording
