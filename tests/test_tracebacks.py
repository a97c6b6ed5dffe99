"""Exceptions in a few words, of the exception itself and of the text that is kept of it."""

from __future__ import annotations

import contextlib

import pytest

from qframe.payload import tracebacks


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        raise error from cause

    with contextlib.suppress(BaseException):
        deeper(3)
    return error


def inner() -> ValueError:
    return ValueError("of the child:\n\nTraceback (most recent call last):\n  File x\nKeyError: 1")


NOTED = ValueError("boom")
NOTED.add_note("a note")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError("boom\nsecond line"), "ValueError: boom ..."),
        (ValueError("boom\n  indented\nTypeError: x\n"), "ValueError: boom ..."),
        (inner(), "ValueError: of the child: ..."),
        (ValueError(), "ValueError"),
        (KeyError("a\nb"), r"KeyError: 'a\nb'"),
        (ExceptionGroup("2", [ValueError("a"), inner()]), "ExceptionGroup: 2 (2 sub-exceptions)"),
        (ValueError("a\x1b[31m\u202e"), r"ValueError: a\x1b[31m\u202e"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cause", [None, inner(), ExceptionGroup("g", [inner()])])
def test_an_error_of_several_lines_is_its_type_and_first_line(
    error: BaseException, said: str, cause: BaseException | None
) -> None:
    error = raised(error, cause)
    assert tracebacks.brief(error) == said
    kept = tracebacks.brief_of(tracebacks.full(error))
    assert kept.removesuffix(" ...") == said.removesuffix(" ...")


def test_a_group_that_was_never_raised_is_named_too() -> None:
    group = ExceptionGroup("two", [ValueError("a")])
    assert (
        tracebacks.brief_of(tracebacks.full(group)) == "ExceptionGroup: two (1 sub-exception) ..."
    )


def test_a_note_is_not_the_error() -> None:
    assert tracebacks.brief(raised(NOTED)) == "ValueError: boom"
    assert tracebacks.brief_of(tracebacks.full(raised(NOTED))) == "ValueError: boom ..."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JobTimedOut: ran too long", "JobTimedOut: ran too long"),
        ("RuntimeException: boom in /app/x.php:3\nStack trace:\n#0 {main}",
         "RuntimeException: boom in /app/x.php:3 ..."),
        ("", ""),
        ("\n\n", ""),
        ("Traceback (most recent call last):", ""),
    ],
)  # fmt: skip
def test_what_others_keep_is_its_first_line(text: str, said: str) -> None:
    assert tracebacks.brief_of(text) == said


@pytest.mark.parametrize("length", [20_000, 40_000, 500_000])
def test_a_long_message_keeps_its_type(length: int) -> None:
    error = raised(ValueError("boom\n" + "x" * length))
    assert tracebacks.brief_of(tracebacks.full(error)) == "ValueError: boom ..."


def test_a_long_line_is_cut() -> None:
    error = raised(ValueError("x" * 500 + "\nmore"))
    assert len(tracebacks.brief(error, 100)) == 100
    assert len(tracebacks.brief_of(tracebacks.full(error), 100)) == 100


def test_an_exception_that_cannot_be_shown_is_named() -> None:
    assert tracebacks.brief(Mute()) == "Mute: (no message)"
