from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qframe import ConfigurationError, InvalidQueueName
from qframe.payload.text import nearest, one_line, printable, queue_name

ALLOWED = string.ascii_letters + string.digits + "_.:-"


@pytest.mark.parametrize("name", ["a", "emails", "a.b:c-d_e", "0", "q" * 128, "{x}"[1]])
def test_what_may_name_a_queue(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a b", "a\n", "\n", "a\0", "q" * 129, "q" * 300, "grün", "a/b", "{a}", "a,b"),
        *(None, 7, b"emails", ["a"]),
    ],
)
def test_what_may_not_is_refused_in_one_short_line(name: object) -> None:
    with pytest.raises(InvalidQueueName) as raised:
        queue_name(name)
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 140
    assert "A-Z a-z 0-9 _ . : -" in message


def test_a_wrong_queue_name_is_a_mistake_of_usage_and_a_value_error() -> None:
    assert issubclass(InvalidQueueName, ConfigurationError)
    assert issubclass(InvalidQueueName, ValueError)


@given(st.text(max_size=140))
def test_exactly_the_named_characters_make_a_queue_name(text: str) -> None:
    right = 1 <= len(text) <= 128 and all(c in ALLOWED for c in text)
    try:
        queue_name(text)
    except InvalidQueueName:
        assert not right
    else:
        assert right


def test_the_nearest_name_is_said_only_where_one_is_near() -> None:
    assert nearest("tris", ["tries", "timeout"]) == " (did you mean 'tries'?)"
    assert nearest("zzz", ["tries", "timeout"]) == ""
    assert nearest("x", []) == ""


@given(st.text())
def test_what_is_made_printable_holds_no_control_character(text: str) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("a\x1b[31mb\x9bm\u202ec\r\n\ud800") == (r"a\x1b[31mb\x9bm\u202ec\r\n\ud800")
    assert one_line("a\n\n  b\tc\x00") == r"a b c\x00"


def test_what_is_printable_stays() -> None:
    assert printable("Grüße, 世界 😀  x") == "Grüße, 世界 😀  x"


def test_long_text_is_capped() -> None:
    assert printable("a" * 50, 10) == "aaaaaaa..."
    assert len(one_line("b " * 5000)) == 300
