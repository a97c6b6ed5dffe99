"""Steps as text: whatever a step has comes back as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qframe.contracts import FailedJob
from qframe.contracts import step as op
from qframe.contracts.history import History
from qframe.contracts.step import Operation, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.outbox.text import VERSION, decoded, encoded

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
raws = st.binary() | texts.map(str.encode)
seconds = st.floats(0, 1e9)
numbers = st.integers(0, 2**53 - 1)
maybe = st.none() | seconds
pushes = st.builds(op.Push, texts, raws, seconds, st.none() | numbers)
histories = st.builds(
    History().started, numbers, texts, numbers, st.floats(0, 1e10)
) | st.just(History())  # fmt: skip
failed = st.builds(
    FailedJob, texts, texts, texts, raws, texts, texts, numbers, histories, seconds
)  # fmt: skip
operations: st.SearchStrategy[Operation] = st.one_of(
    pushes,
    st.builds(op.Expect, texts, st.none() | texts),
    st.builds(op.Set, texts, texts, maybe),
    st.builds(op.Unset, texts, st.none() | texts),
    st.builds(op.Raise, texts, numbers, texts, seconds),
    st.builds(op.Add, texts, numbers, maybe),
    st.builds(op.Open, texts, pushes, numbers, seconds),
    st.builds(op.Extend, texts, numbers),
    st.builds(op.Arrive, texts, numbers, st.booleans(), texts, st.booleans()),
    st.builds(op.Leave, texts, numbers),
    st.builds(op.Close, texts, st.booleans()),
    st.builds(op.Record, failed),
    st.builds(op.Forget, texts),
)


@given(st.lists(operations))
def test_it_comes_back_as_it_was(made: list[Operation]) -> None:
    text = encoded(Step(None, *made))
    assert "\0" not in text
    assert [*decoded(text)] == made


def test_what_a_text_says_is_read_by_people() -> None:
    text = encoded(Step(None, op.Push("emails", b'{"uuid":"1"}', 5.0), op.Set("k", "v", 60.0)))
    assert json.loads(text) == {
        "version": VERSION,
        "operations": [
            {"is": "Push", "queue": "emails", "raw": {"is": "bytes", "text": '{"uuid":"1"}'},
             "delay": 5.0},
            {"is": "Set", "key": "k", "value": "v", "ttl": 60.0},
        ],
    }  # fmt: skip


def test_a_step_about_a_reservation_is_refused() -> None:
    backend = MemoryBackend()
    backend.apply(Step(None, op.Push("q", b"x")))
    ((job,), _) = backend.reserve(["q"])
    with pytest.raises(ValueError, match="reservation"):
        encoded(job.delete())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 2, "operations": []}', "upgrade the relay"),
        ('{"version": 1, "operations": [{"is": "Start", "lease": 1}]}', "unknown here"),
        ('{"version": 1, "operations": [{"is": "Set", "kay": 1}]}', "holds no step"),
        ("{}", "holds no step"),
        ("nothing", "Expecting value"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decoded(text)
